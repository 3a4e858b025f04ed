// The operators that ran while a debug mode noted them, by module: equal calls are one note.
#pragma once

#include <ATen/record_function.h>

#include <optional>
#include <unordered_map>

#include "debug/running_modules.h"
#include "meshtorch/debug.h"

namespace meshtorch::internal {

// One call of an operator, as it is noted.
struct OperatorCall {
  std::string name;      // "aten::add.Tensor"
  std::string operands;  // "[8, 16] [S(0)], [16]": shapes, and placements of distributed tensors
  TableDetail detail;    // the first level that shows it
  bool is_distributed;   // some operand is
};

// Nothing for composite operators, which are noted by their parts, for collectives, which are counted, and
// for runs on shapes alone.
std::optional<OperatorCall> operator_call(const at::RecordFunction& call);

struct OperatorNote {
  std::string module;  // the innermost one; empty outside of all
  bool is_backward;
  OperatorCall call;
  std::int64_t calls;
};

class OperatorNotes {
 public:
  void note(const OperatorCall& call, const RunningModules& running);
  // In the order of first calls.
  const std::vector<OperatorNote>& notes() const { return notes_; }

 private:
  std::vector<OperatorNote> notes_;
  std::unordered_map<std::string, std::size_t> places_;  // in notes_, by all but the calls
};

}  // namespace meshtorch::internal

// What the tables of calls are written with.
#pragma once

#include "../dist/sample_inputs.h"
#include "calls.h"

namespace meshtorch::testing {

using Ints = std::vector<int64_t>;
using Tensors = std::vector<torch::Tensor>;
inline const torch::Tensor kAbsent;

// One line: operators, tensors in schema order, other arguments by name.
class CallTable {
 public:
  void add(std::initializer_list<const char*> ops, const std::vector<c10::IValue>& tensors,
           const std::map<std::string, c10::IValue>& others = {}) {
    for (const char* op : ops) calls_.push_back({op, tensors, others});
  }
  void add(const std::string& op, const std::vector<c10::IValue>& tensors,
           const std::map<std::string, c10::IValue>& others = {}) {
    calls_.push_back({op, tensors, others});
  }
  std::vector<Call> calls() && { return std::move(calls_); }

 private:
  std::vector<Call> calls_;
};

}  // namespace meshtorch::testing

// Operators that are written out in others: functions with LibTorch's own signatures, found by name.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>

#include <map>
#include <string>
#include <string_view>

namespace meshtorch::internal {

// "mean.dim", as rules name it; `Op` is LibTorch's description of the operator, as at::_ops::mean_dim.
template <typename Op>
std::string name_of() {
  const std::string_view name = std::string_view(Op::name).substr(std::string_view("aten::").size());
  std::string full(name);
  if (*Op::overload_name != '\0') full.append(".").append(Op::overload_name);
  return full;
}

// A function that is called instead of the operator, with its arguments, one of which at least is
// distributed.
struct Decomposition {
  struct Traits {
    bool asks_rule = false;    // calls by_rule<Op> where it does not apply
    bool takes_plain = false;  // sees itself to plain tensors beside distributed ones
  };
  c10::KernelFunction function;
  Traits traits;
};

class DecompositionTable {
 public:
  template <typename Op>
  void add(typename Op::schema* function, Decomposition::Traits traits = {}) {
    insert(name_of<Op>(), {c10::KernelFunction::makeFromUnboxedRuntimeFunction(function), traits});
  }

  // Null if the operator has none.
  const Decomposition* find(std::string_view op) const;
  const std::map<std::string, Decomposition, std::less<>>& entries() const { return entries_; }

 private:
  void insert(std::string op, Decomposition decomposition);

  std::map<std::string, Decomposition, std::less<>> entries_;
};

// All families, made once (decompose/table.cc, which lies above: the functions call operators on distributed
// tensors).
const DecompositionTable& decompositions();

}  // namespace meshtorch::internal

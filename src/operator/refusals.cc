// Operators that cannot run on distributed tensors.
#include "operator/refusals.h"

namespace meshtorch::internal {

const char* const kAddressesMemory =
    " addresses memory by strides, and a split tensor has no memory of its global shape\n  do: use view, "
    "select, slice or expand";

namespace {

constexpr const char* kIsACollective =
    " was called on a distributed tensor\n  do: call it on to_local(), or use redistribute()";

struct Refusal {
  std::string_view op;  // ends with "*" for all that begin so
  const char* words;
};

const Refusal kRefusals[] = {
    {"set_", kAddressesMemory},
    {"set_.source_Storage*", kAddressesMemory},
    {"set_.source_Tensor_*", kAddressesMemory},
    {"c10d::*", kIsACollective},
};

bool matches(std::string_view pattern, std::string_view op) {
  if (!pattern.ends_with('*')) return op == pattern;
  return op.starts_with(pattern.substr(0, pattern.size() - 1));
}

}  // namespace

const char* const kDrawsForEachRank =
    " takes no generator, and each rank would draw numbers of its own\n  do: use meshtorch::rand and its "
    "kin, "
    "or draw in place (uniform_, normal_)";

const char* refusal_of(std::string_view op) {
  for (const Refusal& refusal : kRefusals) {
    if (matches(refusal.op, op)) return refusal.words;
  }
  return nullptr;
}

}  // namespace meshtorch::internal

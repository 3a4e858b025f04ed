// Operators that are written out in others, by name.
#include "operator/decomposition.h"

#include <c10/util/Exception.h>

namespace meshtorch::internal {

const Decomposition* DecompositionTable::find(std::string_view op) const {
  const auto found = entries_.find(op);
  return found == entries_.end() ? nullptr : &found->second;
}

void DecompositionTable::insert(std::string op, Decomposition decomposition) {
  const bool is_new = entries_.emplace(op, std::move(decomposition)).second;
  TORCH_INTERNAL_ASSERT(is_new, "two decompositions of `", op, "`");
}

}  // namespace meshtorch::internal

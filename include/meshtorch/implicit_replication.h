// A scope in which plain tensors count as replicated.
#pragma once

#include "meshtorch/api.h"

namespace meshtorch {

// While it lives, on this thread, a plain tensor that meets a distributed one is taken as equal on all ranks.
class MESHTORCH_API implicit_replication {
 public:
  implicit_replication();
  ~implicit_replication();
  implicit_replication(const implicit_replication&) = delete;
  implicit_replication& operator=(const implicit_replication&) = delete;
};

}  // namespace meshtorch

// Checking that what is called Replicate is equal.
#pragma once

#include <string>

#include "meshtorch/api.h"

namespace at {
class Tensor;
}
namespace torch::nn {
class Module;
}

namespace meshtorch {

// Compares the local tensors of the ranks along each axis on which the tensor is replicated, bit by bit, by
// their hashes: 8 bytes a rank are sent. Throws the same error on all ranks of such an axis if they differ;
// it names `what` and the ranks. All ranks of the mesh call it. Plain tensors are not looked at.
MESHTORCH_API void check_replicas(const at::Tensor& tensor, const std::string& what = "the tensor");

// The same for the parameters and buffers of a module, by their names.
MESHTORCH_API void check_replicas(const torch::nn::Module& module);

// While it lives, every redistribution on this rank first checks its tensor: for finding where ranks came
// apart. All ranks of a program need one at the same time.
class MESHTORCH_API CheckReplicas {
 public:
  CheckReplicas();
  ~CheckReplicas();
  CheckReplicas(const CheckReplicas&) = delete;
  CheckReplicas& operator=(const CheckReplicas&) = delete;
};

}  // namespace meshtorch

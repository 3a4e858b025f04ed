// Models without memory: of their real shape, until they are split or loaded.
#pragma once

#include <c10/core/Device.h>

#include "meshtorch/api.h"

namespace torch::nn {
class Module;
}

namespace meshtorch {

// While it lives, what the calling thread makes without naming a device (torch::empty, torch::randn and their
// kin, and so the parameters of modules) is made on the meta device: it has a shape and no memory.
class MESHTORCH_API on_meta_device {
 public:
  on_meta_device();
  ~on_meta_device();
  on_meta_device(const on_meta_device&) = delete;
  on_meta_device& operator=(const on_meta_device&) = delete;
};

// Gives memory to the parameters and buffers that are on the meta device, where they are distributed to this
// rank's shard only. What is in it is not set: initialise it, or load a checkpoint.
MESHTORCH_API void materialize(torch::nn::Module& module, const c10::Device& device);

}  // namespace meshtorch

// Memory for modules that were made without.
#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include "meshtorch/distribute_module.h"
#include "meshtorch/meta_device.h"

namespace meshtorch {

void materialize(torch::nn::Module& module, const c10::Device& device) {
  for (const auto& tensors : {module.parameters(), module.buffers()}) {
    for (const at::Tensor& tensor : tensors) {
      if (tensor.is_meta()) replace_data(tensor, at::empty_like(tensor, device));
    }
  }
}

}  // namespace meshtorch

// Gradients that are still pending sums, made whole before an optimiser reads them.
#pragma once

#include <vector>

#include "meshtorch/api.h"

namespace at {
class Tensor;
}

namespace meshtorch {

// Brings the gradient of each distributed parameter to the parameter's layout. After backward the gradients
// of replicated parameters are pending sums, and stay so while further batches are accumulated; an optimiser
// reads a gradient several times, and each reading would reduce it again. Here each is reduced once, those
// over the same axes in one collective. Plain parameters and undefined gradients are left alone. Every rank
// calls it with the same parameters in the same order.
MESHTORCH_API void reduce_gradients(const std::vector<at::Tensor>& parameters);

}  // namespace meshtorch

// What a model would cost on a mesh of any size, found on one rank without data: parameters and collectives.
#pragma once

#include <meshtorch/debug.h>

#include <functional>
#include <string>
#include <vector>

#include "parallelize.h"

namespace llama {

// One parameter, or the same parameter of `count` layers.
struct ParameterLine {
  std::string name;
  std::int64_t count = 1;
  std::vector<std::int64_t> shape, local_shape;
  meshtorch::Placements placements;
  std::int64_t elements = 0, local_bytes = 0;  // of all `count` together
};
std::vector<ParameterLine> parameters_of(const LlamaImpl& model);

// The collectives of this rank in one training step, phase by phase.
struct StepPhase {
  std::string name;
  meshtorch::CommCounts counts;
};
// Runs forward, loss, backward and the reduction of the gradients on this batch, which needs data only if the
// model has.
std::vector<StepPhase> collectives_of_step(Llama model, const meshtorch::DeviceMesh& mesh,
                                           const torch::Tensor& ids_BS,
                                           const std::function<void()>& on_forward_done = {});

}  // namespace llama

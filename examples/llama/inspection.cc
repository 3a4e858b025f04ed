// Inspection of a model without data, on the fake backend.
#include "inspection.h"

#include <meshtorch/gradients.h>
#include <meshtorch/loss_parallel.h>
#include <torch/torch.h>

#include <regex>

namespace llama {
namespace {

namespace mt = meshtorch;

std::string with_any_layer(const std::string& name) {
  static const std::regex kLayer("\\.layers\\.[0-9]+\\.");
  return std::regex_replace(name, kLayer, ".layers.*.");
}

}  // namespace

std::vector<ParameterLine> parameters_of(const LlamaImpl& model) {
  std::vector<ParameterLine> lines;
  for (const auto& item : model.named_parameters()) {
    const mt::DTensor parameter(item.value().detach());
    const torch::Tensor local = parameter.to_local();
    const auto bytes = local.numel() * static_cast<std::int64_t>(local.element_size());
    const std::string name = with_any_layer(item.key());
    const auto same =
        std::find_if(lines.begin(), lines.end(), [&](const auto& line) { return line.name == name; });
    if (same == lines.end()) {
      lines.push_back({name, 1, parameter.sizes().vec(), local.sizes().vec(), parameter.placements(),
                       parameter.numel(), bytes});
    } else {
      same->count += 1;
      same->elements += parameter.numel();
      same->local_bytes += bytes;
    }
  }
  return lines;
}

std::vector<StepPhase> collectives_of_step(Llama model, const mt::DeviceMesh& mesh,
                                           const torch::Tensor& ids_BS,
                                           const std::function<void()>& on_forward_done) {
  const mt::DTensor batch_BS = distribute_batch(ids_BS, mesh);
  const mt::loss_parallel split_by_vocabulary;
  mt::CommDebugMode comm;
  std::vector<StepPhase> phases;
  const auto end_phase = [&](const char* name) {
    phases.push_back({name, comm.get_comm_counts()});
    comm.restart();
  };
  const torch::Tensor logits_BSV = model(batch_BS);
  end_phase("forward");
  const torch::Tensor loss =
      torch::nn::functional::cross_entropy(logits_BSV.flatten(0, 1), batch_BS.flatten(0, 1));
  end_phase("loss");
  if (on_forward_done) on_forward_done();
  loss.backward();
  end_phase("backward");
  mt::reduce_gradients(model->parameters());
  end_phase("gradients");
  return phases;
}

}  // namespace llama

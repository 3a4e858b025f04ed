// What ranks keep of a module: counted on this rank, or worked out for all.
#include "meshtorch/memory.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>

#include "core/shard.h"
#include "data_parallel/parameter_group.h"
#include "debug/data_parallel_memory.h"
#include "meshtorch/collectives.h"
#include "meshtorch/dtensor.h"
#include "meshtorch/process_group.h"
#include "runtime/host_tensor.h"
#include "tensor/meta.h"

namespace meshtorch {
using namespace internal;
namespace {

std::int64_t bytes_here(const at::Tensor& tensor) {
  if (!tensor.defined()) return 0;
  const DTensorMeta* meta = meta_of(tensor);
  const at::Tensor& local = meta != nullptr ? meta->local : tensor;
  return local.numel() * static_cast<std::int64_t>(local.element_size());
}

// The tensors of one parameter's state, of whichever of LibTorch's optimizers it is.
std::int64_t state_bytes(const torch::optim::OptimizerParamState& state) {
  const auto adam_like = [](const auto* s) {
    return bytes_here(s->exp_avg()) + bytes_here(s->exp_avg_sq()) + bytes_here(s->max_exp_avg_sq());
  };
  if (const auto* s = dynamic_cast<const torch::optim::AdamWParamState*>(&state)) return adam_like(s);
  if (const auto* s = dynamic_cast<const torch::optim::AdamParamState*>(&state)) return adam_like(s);
  if (const auto* s = dynamic_cast<const torch::optim::SGDParamState*>(&state))
    return bytes_here(s->momentum_buffer());
  if (const auto* s = dynamic_cast<const torch::optim::RMSpropParamState*>(&state))
    return bytes_here(s->square_avg()) + bytes_here(s->momentum_buffer()) + bytes_here(s->grad_avg());
  if (const auto* s = dynamic_cast<const torch::optim::AdagradParamState*>(&state))
    return bytes_here(s->sum());
  return 0;
}

constexpr int kFields = 8;

std::vector<std::int64_t> numbers_of(const RankMemory& m) {
  return {m.rank,
          m.parameters,
          m.gradients,
          m.optimizer,
          m.activations,
          m.replicas,
          m.measured_peak.has_value(),
          m.measured_peak.value_or(0)};
}

RankMemory memory_from(const std::int64_t* n) {
  RankMemory m{n[0], n[1], n[2], n[3], n[4], n[5]};
  if (n[6] != 0) m.measured_peak = n[7];
  return m;
}

Shape coordinate_of(std::int64_t member, const Shape& mesh) {
  Shape coordinate(mesh.size());
  for (std::size_t axis = mesh.size(); axis-- > 0;) {
    coordinate[axis] = member % mesh[axis];
    member /= mesh[axis];
  }
  return coordinate;
}

// The bytes of a parameter at a member of `mesh`; of a tensor elsewhere, those of this rank.
std::int64_t bytes_at(const at::Tensor& parameter, const MeshImpl& mesh, const Shape& coordinate) {
  const DTensorMeta* meta = meta_of(parameter);
  if (meta == nullptr || meta->mesh.get() != &mesh) return bytes_here(parameter);
  std::int64_t elements = 1;
  for (const std::int64_t n :
       local_shape(parameter.sizes().vec(), meta->layout->placements, mesh.shape(), coordinate))
    elements *= n;
  return elements * static_cast<std::int64_t>(parameter.element_size());
}

// The largest mesh that a parameter lies on.
std::shared_ptr<MeshImpl> mesh_of_parameters(const std::vector<at::Tensor>& parameters) {
  std::shared_ptr<MeshImpl> largest;
  for (const at::Tensor& parameter : parameters) {
    const DTensorMeta* meta = meta_of(parameter);
    if (meta == nullptr) continue;
    if (!largest || meta->mesh->ranks().size() > largest->ranks().size()) largest = meta->mesh;
  }
  return largest;
}

}  // namespace

RankMemory memory_of(const torch::nn::Module& module, torch::optim::Optimizer* optimizer) {
  RankMemory memory;
  memory.rank = is_initialized() ? get_rank() : 0;
  for (const at::Tensor& parameter : module.parameters()) {
    memory.parameters += bytes_here(parameter);
    memory.gradients += bytes_here(parameter.grad());
  }
  if (optimizer == nullptr) return memory;
  for (const auto& [key, state] : optimizer->state()) memory.optimizer += state_bytes(*state);
  return memory;
}

std::vector<RankMemory> gather_memory(const RankMemory& mine) {
  const at::Tensor all =
      wait_tensor(all_gather_tensor(at::tensor(numbers_of(mine), on_host(at::kLong)), 0, {}));
  std::vector<RankMemory> memory;
  for (std::int64_t i = 0; i < all.numel(); i += kFields)
    memory.push_back(memory_from(all.const_data_ptr<std::int64_t>() + i));
  return memory;
}

std::vector<RankMemory> estimate_memory(const torch::nn::Module& module, const MemoryEstimate& estimate) {
  return estimate_memory(module.parameters(), estimate);
}

std::vector<RankMemory> estimate_memory(const std::vector<at::Tensor>& parameters,
                                        const MemoryEstimate& estimate) {
  std::vector<std::int64_t> wholes;
  for (const auto& group : ParameterGroup::of(parameters)) wholes.push_back(group->gathered_bytes());
  const auto trained = [&](std::int64_t rank, std::int64_t bytes) {
    return RankMemory{.rank = rank,
                      .parameters = bytes,
                      .gradients = bytes,
                      .optimizer = estimate.optimizer_numbers * bytes,
                      .activations = estimate.activations,
                      .replicas = largest_two(wholes)};
  };
  const std::shared_ptr<MeshImpl> mesh = mesh_of_parameters(parameters);
  if (!mesh) {
    std::int64_t bytes = 0;
    for (const at::Tensor& parameter : parameters) bytes += bytes_here(parameter);
    return {trained(is_initialized() ? get_rank() : 0, bytes)};
  }
  const auto size = static_cast<std::int64_t>(mesh->ranks().size());
  const std::int64_t most = std::max<std::int64_t>(estimate.most_ranks, 1);
  const std::int64_t apart = (size + most - 1) / most;
  std::vector<RankMemory> ranks;
  for (std::int64_t member = 0; member < size; member += apart) {
    const Shape coordinate = coordinate_of(member, mesh->shape());
    std::int64_t bytes = 0;
    for (const at::Tensor& parameter : parameters) bytes += bytes_at(parameter, *mesh, coordinate);
    ranks.push_back(trained(mesh->ranks()[static_cast<std::size_t>(member)], bytes));
  }
  return ranks;
}

}  // namespace meshtorch

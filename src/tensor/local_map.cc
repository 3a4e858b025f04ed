// local_map: from distributed arguments to shards, and from the shards that come out to distributed results.
#include "meshtorch/local_map.h"

#include <ATen/ATen.h>

#include <cstdlib>

#include "mesh/mesh_impl.h"
#include "meshtorch/collectives.h"
#include "meshtorch/error.h"
#include "runtime/host_tensor.h"
#include "tensor/from_local.h"

namespace meshtorch::detail {
using namespace internal;
namespace {

// Whether shards of this tensor differ in size, which every rank can tell.
bool is_unevenly_split(const DTensor& tensor) {
  std::vector<std::int64_t> parts(static_cast<std::size_t>(tensor.dim()), 1);
  const DeviceMesh mesh = tensor.device_mesh();
  for (std::size_t axis = 0; axis < tensor.placements().size(); ++axis) {
    const Placement& p = tensor.placements()[axis];
    if (p.is_shard()) parts[static_cast<std::size_t>(p.dim())] *= mesh.size(static_cast<std::int64_t>(axis));
  }
  for (std::size_t dim = 0; dim < parts.size(); ++dim) {
    if (tensor.size(static_cast<std::int64_t>(dim)) % parts[dim] != 0) return true;
  }
  return false;
}

Placements normalized(const Placements& placements, std::int64_t rank) {
  Placements result;
  for (const Placement& p : placements) result.push_back(p.normalized(rank));
  return result;
}

// Throws on every rank if the local tensors differ along an axis on which they are said to be replicas.
void check_replicas(const at::Tensor& local, const DeviceMesh& mesh, const Placements& placements,
                    const std::string& what, const char* remedy) {
  const at::NoGradGuard no_grad;
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    if (!placements[axis].is_replicate()) continue;
    const Group group = mesh.get_group(static_cast<std::int64_t>(axis));
    const at::Tensor mine = local.detach().contiguous();
    const at::Tensor first = wait_tensor(broadcast(mine, 0, group));
    const at::Tensor differs =
        at::tensor({at::allclose(mine, first, 0, 0, /*equal_nan=*/true) ? 0 : 1}, on_host(at::kLong));
    const bool any_differs = wait_tensor(all_reduce(differs, "max", group)).item<std::int64_t>() != 0;
    TORCH_CHECK_VALUE(
        !any_differs, "meshtorch: local_map: ", what, " is said to be replicated, but the ranks of axis ",
        axis, " have different values\n  its placements: ", to_string(placements), "\n  do: ", remedy);
  }
}

}  // namespace

bool is_debug_mode() {
  static const bool debug = std::getenv("MESHTORCH_DEBUG") != nullptr;
  return debug;
}

LocalMapCall::LocalMapCall(const LocalMapSettings& settings, const std::vector<at::Tensor>& inputs)
    : settings_(settings), mesh_(settings.device_mesh) {
  check_assertion(!settings.in_placements || settings.in_placements->size() == inputs.size(),
                  "meshtorch: local_map: in_placements length ",
                  settings.in_placements ? settings.in_placements->size() : 0,
                  " does not match the number of input args ", inputs.size(), "!");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!is_dtensor(inputs[i])) continue;
    note(settings.in_placements ? placements(settings.in_placements, i) : DTensor(inputs[i]).placements());
  }
  for (const Placements& lies : settings.out_placements.value_or(std::vector<Placements>())) note(lies);
}

void LocalMapCall::note(const Placements& lies) {
  differs_.resize(std::max(differs_.size(), lies.size()));
  for (std::size_t axis = 0; axis < lies.size(); ++axis) {
    if (!lies[axis].is_replicate()) differs_[axis] = true;
  }
}

// Where ranks differ along an axis, what they have in common has one cotangent for all of them, of which each
// rank has a term: a replicated argument gets the sum of the ranks' gradients, and of the gradient of a
// replicated result each rank gets a part, so that whatever the function sends over the axis is counted once.
Placements LocalMapCall::gradient_of(const Placements& lies) const {
  Placements gradient = lies;
  for (std::size_t axis = 0; axis < lies.size(); ++axis) {
    const bool is_shared = lies[axis].is_replicate() && axis < differs_.size() && differs_[axis];
    if (lies[axis].is_partial()) gradient[axis] = Replicate();
    if (is_shared) gradient[axis] = Partial();
  }
  return gradient;
}

const Placements& LocalMapCall::placements(const std::optional<std::vector<Placements>>& each,
                                           std::size_t index) const {
  static const Placements none;
  return each && index < each->size() ? (*each)[index] : none;
}

void LocalMapCall::input(at::Tensor& tensor) {
  const std::size_t index = input_++;
  if (!is_dtensor(tensor)) return;
  DTensor argument = tensor;
  seen_dtensor_ = true;
  if (!mesh_) mesh_ = argument.device_mesh();
  check_assertion(
      *mesh_ == argument.device_mesh(), "meshtorch: local_map: argument ", index,
      " is on another mesh\n  its mesh: ", argument.device_mesh().to_string(),
      "\n  expected: ", mesh_->to_string(),
      "\n  do: put it on that mesh, as distribute_tensor(x.full_tensor(), mesh, placements) does");
  if (settings_.in_placements) {
    const Placements& given = placements(settings_.in_placements, index);
    check_assertion(!given.empty(), "meshtorch: local_map: the DTensor input ", index,
                    " expects placements but received none!");
    const Placements wanted = normalized(given, argument.dim());
    if (argument.placements() != wanted) {
      TORCH_CHECK_VALUE(
          settings_.redistribute_inputs, "meshtorch: local_map: argument ", index,
          " has mismatched placements\n  they are ", to_string(argument.placements()),
          "\n  but in_placements are ", to_string(wanted),
          "\n  do: if redistribution is wanted, set redistribute_inputs=True (.redistribute_inputs = true)");
      argument = argument.redistribute(wanted);
    }
  }
  is_uneven_ = is_uneven_ || is_unevenly_split(argument);
  Placements gradient = gradient_of(argument.placements());
  if (settings_.in_grad_placements) {
    gradient = placements(settings_.in_grad_placements, index);
    check_assertion(!gradient.empty(), "meshtorch: local_map: the DTensor input ", index,
                    " expects in grad placements but received none!");
  }
  tensor = wait_tensor(argument.to_local({.grad_placements = gradient}));
  if (!settings_.check_replicated || !tensor.requires_grad()) return;
  tensor.register_hook([mesh = *mesh_, gradient, index](const at::Tensor& g) {
    check_replicas(g, mesh, gradient, c10::str("the gradient of argument ", index),
                   "leave in_grad_placements out, or say Partial where ranks have terms of it");
  });
}

void LocalMapCall::other_input() {
  const Placements& given = placements(settings_.in_placements, input_);
  check_assertion(given.empty(), "meshtorch: local_map: the non-tensor input ", input_,
                  " expects no placements but received ", to_string(given), "!");
  ++input_;
}

void LocalMapCall::expect_outputs(std::size_t outputs) const {
  const std::size_t given = settings_.out_placements ? settings_.out_placements->size() : 1;
  const bool is_none = !settings_.out_placements && outputs != 1;
  check_assertion(is_none || given == outputs,
                  "meshtorch: local_map requires one list of placements for each output value, received ",
                  given, " out_placements but ", outputs, " is expected!");
}

void LocalMapCall::output(at::Tensor& tensor) {
  const std::size_t index = output_++;
  if (!tensor.defined()) return;
  check_assertion(!is_dtensor(tensor), "meshtorch: local_map: a plain tensor was expected as output ", index,
                  ", but the function gave a distributed one");
  const Placements& given = placements(settings_.out_placements, index);
  const Placements lies =
      given.empty() ? Placements(static_cast<std::size_t>(mesh_->ndim())) : normalized(given, tensor.dim());
  if (settings_.check_replicated) {
    check_replicas(tensor, *mesh_, lies, c10::str("output ", index),
                   "reduce it in the function, or say Shard or Partial");
  }
  // Sizes are exchanged only if shards may differ.
  bool is_split = false;
  for (const Placement& p : lies) is_split = is_split || p.is_shard();
  FromLocalOptions options;
  if (is_uneven_ && is_split) {
    options.shape = shape_of_checked_shards(tensor.detach(), *impl_of(*mesh_).layout(lies), std::nullopt);
  }
  if (!settings_.in_grad_placements) options.grad_placements = gradient_of(lies);
  tensor = DTensor::from_local(tensor, *mesh_, lies, options);
}

void LocalMapCall::other_output() {
  const Placements& given = placements(settings_.out_placements, output_);
  check_assertion(given.empty(), "meshtorch: local_map: the non-tensor output ", output_,
                  " expects no placements but received ", to_string(given), "!");
  ++output_;
}

}  // namespace meshtorch::detail

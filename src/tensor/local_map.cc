// local_map: from distributed arguments to shards, and from the shards that come out to distributed results.
#include "meshtorch/local_map.h"

#include <ATen/ATen.h>

#include <cstdlib>

#include "meshtorch/collectives.h"
#include "meshtorch/error.h"

namespace meshtorch::detail {
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
                    std::size_t output) {
  const at::NoGradGuard no_grad;
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    if (!placements[axis].is_replicate()) continue;
    const Group group = mesh.get_group(static_cast<std::int64_t>(axis));
    const at::Tensor mine = local.detach().contiguous();
    const at::Tensor first = wait_tensor(broadcast(mine, 0, group));
    const at::Tensor differs =
        at::tensor({at::allclose(mine, first, 0, 0, /*equal_nan=*/true) ? 0 : 1}, at::kLong);
    const bool any_differs = wait_tensor(all_reduce(differs, "max", group)).item<std::int64_t>() != 0;
    TORCH_CHECK_VALUE(!any_differs, "meshtorch: local_map: output ", output,
                      " is said to be replicated, but the ranks of axis ", axis,
                      " have different values\n  out_placements: ", to_string(placements),
                      "\n  do: reduce it in the function, or say Shard or Partial");
  }
}

}  // namespace

bool is_debug_mode() {
  static const bool debug = std::getenv("MESHTORCH_DEBUG") != nullptr;
  return debug;
}

LocalMapCall::LocalMapCall(const LocalMapSettings& settings, std::size_t inputs)
    : settings_(settings), mesh_(settings.device_mesh) {
  if (!settings.in_placements) return;
  check_assertion(settings.in_placements->size() == inputs, "meshtorch: local_map: in_placements length ",
                  settings.in_placements->size(), " does not match the number of input args ", inputs, "!");
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
  check_assertion(*mesh_ == argument.device_mesh(), "meshtorch: local_map: argument ", index,
                  " is on another mesh\n  its mesh: ", argument.device_mesh().to_string(),
                  "\n  expected: ", mesh_->to_string(), "\n  do: redistribute it to that mesh first");
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
  ToLocalOptions options;
  if (settings_.in_grad_placements) {
    const Placements& gradient = placements(settings_.in_grad_placements, index);
    check_assertion(!gradient.empty(), "meshtorch: local_map: the DTensor input ", index,
                    " expects in grad placements but received none!");
    options.grad_placements = gradient;
  }
  tensor = wait_tensor(argument.to_local(options));
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
  if (settings_.check_replicated) check_replicas(tensor, *mesh_, lies, index);
  // Sizes are exchanged only if shards may differ.
  bool is_split = false;
  for (const Placement& p : lies) is_split = is_split || p.is_shard();
  tensor = DTensor::from_local(tensor, *mesh_, lies, {.run_check = is_uneven_ && is_split});
}

void LocalMapCall::other_output() {
  const Placements& given = placements(settings_.out_placements, output_);
  check_assertion(given.empty(), "meshtorch: local_map: the non-tensor output ", output_,
                  " expects no placements but received ", to_string(given), "!");
  ++output_;
}

}  // namespace meshtorch::detail

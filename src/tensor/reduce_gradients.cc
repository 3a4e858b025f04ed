// Makes pending gradients whole, many in one collective: what comes between backward and the optimiser.
#include <ATen/ATen.h>

#include <algorithm>

#include "backends/pending.h"
#include "meshtorch/collectives.h"
#include "meshtorch/gradients.h"
#include "tensor/from_local.h"
#include "tensor/meta.h"
#include "tensor/redistribute.h"

namespace meshtorch {
using namespace internal;
namespace {

const DTensorMeta& gradient_of(const at::Tensor& parameter) {
  return distributed(parameter.grad(), "reduce_gradients, the gradient of a distributed parameter");
}

const Layout* layout_of(const at::Tensor& parameter) {
  return distributed(parameter, "reduce_gradients").layout;
}

// The axes over which a gradient is a pending sum and its parameter replicated.
std::vector<int> axes_to_sum(const Layout& gradient, const Layout& parameter) {
  std::vector<int> axes;
  for (std::size_t axis = 0; gradient.mesh == parameter.mesh && axis < gradient.placements.size(); ++axis) {
    const Placement& p = gradient.placements[axis];
    if (p.is_partial() && p.reduce_op() == ReduceOp::sum && parameter.placements[axis].is_replicate())
      axes.push_back(static_cast<int>(axis));
  }
  return axes;
}

// Other kinds of pending reductions do not commute with sums: such a gradient is reduced by itself.
bool pends_sums_only(const Layout& layout) {
  for (const Placement& p : layout.placements) {
    if (p.is_partial() && p.reduce_op() != ReduceOp::sum) return false;
  }
  return true;
}

const Layout* summed(const Layout& layout, const std::vector<int>& axes) {
  Placements placements = layout.placements;
  for (const int axis : axes) placements[static_cast<std::size_t>(axis)] = Replicate();
  return layout.mesh->layout(placements);
}

// A gradient that every rank of an axis has whole, of a parameter that is split there, is cut before anything
// is sent.
void cut(const at::Tensor& parameter) {
  const Layout& wanted = *layout_of(parameter);
  const Layout& gradient = *gradient_of(parameter).layout;
  if (gradient.mesh != wanted.mesh) return;
  Placements placements = gradient.placements;
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    if (placements[axis].is_replicate()) placements[axis] = wanted.placements[axis];
  }
  if (placements == gradient.placements) return;
  parameter.mutable_grad() = redistribute_tensor(parameter.grad(), wanted.mesh->layout(placements), {});
}

struct Sum {
  MeshImpl* mesh;
  std::vector<int> axes;
  at::ScalarType dtype;
  auto operator<=>(const Sum&) const = default;
};

using Owners = std::vector<const at::Tensor*>;

void sum_together(const Sum& sum, const Owners& owners) {
  Tensors locals;
  for (const at::Tensor* owner : owners) locals.push_back(gradient_of(*owner).local.contiguous());
  const Tensors sums = all_reduce_coalesced(locals, ReduceOp::sum, sum.mesh->group(sum.axes));
  for (std::size_t i = 0; i < owners.size(); ++i) {
    const at::Tensor& gradient = owners[i]->grad();
    wait_pending(sums[i]);
    owners[i]->mutable_grad() = wrap(sums[i], summed(*gradient_of(*owners[i]).layout, sum.axes),
                                     gradient.sizes(), gradient.strides());
  }
}

}  // namespace

void reduce_gradients(const std::vector<at::Tensor>& parameters) {
  const at::NoGradGuard no_grad;
  Owners owners;
  std::vector<std::pair<Sum, Owners>>
      sums;  // in the order of the parameters, which is the same on every rank
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.grad().defined() || meta_of(parameter) == nullptr) continue;
    const Layout* wanted = layout_of(parameter);
    cut(parameter);
    const DTensorMeta& gradient = gradient_of(parameter);
    if (gradient.layout == wanted) continue;
    owners.push_back(&parameter);
    const std::vector<int> axes = axes_to_sum(*gradient.layout, *wanted);
    compare_assumed(gradient.assumed);
    const bool takes_part = gradient.mesh->coordinate().has_value();
    if (axes.empty() || !pends_sums_only(*gradient.layout) || !takes_part) continue;
    const Sum sum{gradient.layout->mesh, axes, parameter.grad().scalar_type()};
    auto found = std::find_if(sums.begin(), sums.end(), [&](const auto& s) { return s.first == sum; });
    if (found == sums.end()) found = sums.insert(sums.end(), {sum, {}});
    found->second.push_back(&parameter);
  }
  for (const auto& [sum, members] : sums) sum_together(sum, members);
  for (const at::Tensor* parameter : owners) {
    const Layout* wanted = layout_of(*parameter);
    if (gradient_of(*parameter).layout != wanted)
      parameter->mutable_grad() = redistribute_tensor(parameter->grad(), wanted, {});
  }
}

}  // namespace meshtorch

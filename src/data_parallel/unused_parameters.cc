// The end of a backward pass that left parameters without gradients.
#include <ATen/ATen.h>

#include "data_parallel/parameter_group.h"
#include "runtime/host_tensor.h"

namespace meshtorch::internal {

void ParameterGroup::reduce_the_rest() {
  using Unused = ParameterGroupOptions::Unused;
  std::vector<std::size_t> unused;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].tensor().requires_grad() && !has_gradient_[i] && !unreduced_[i].defined())
      unused.push_back(i);
  }
  if (options_.unused == Unused::error && !unused.empty()) {
    std::string names;
    for (const std::size_t i : unused) names.append("\n    ").append(parameters_[i].name());
    abandon_backward();
    TORCH_CHECK(false, "meshtorch: parameters of a replicated module got no gradient in backward\n  of: ",
                options_.name, names,
                "\n  do: let the loss depend on them, freeze them with requires_grad_(false), or give "
                "find_unused_parameters = true");
  }
  const bool counts_zeros = options_.unused == Unused::zero || options_.unused == Unused::zero_if_used;
  std::vector<bool> is_used(parameters_.size(), true);
  for (const std::size_t i : unused) is_used[i] = false;
  for (Bucket& bucket : buckets_) {
    const auto has_more = [&](std::size_t i) { return unreduced_[i].defined(); };
    if (counts_zeros) {
      for (const std::size_t i : bucket.members) {
        const at::Tensor& parameter = parameters_[i].tensor();
        if (bucket.is_reduced || unreduced_[i].defined() || !parameter.requires_grad()) continue;
        unreduced_[i] = at::zeros_like(parameter);
      }
    }
    if (std::ranges::any_of(bucket.members, has_more)) reduce(bucket);
  }
  if (options_.unused != Unused::zero_if_used) return;
  finish_reductions();
  // After the buckets, which other ranks may have reduced during backward.
  is_used = used_anywhere(is_used);
  std::erase_if(reduced_, [&](const ReducedGradient& gradient) {
    return !is_used[static_cast<std::size_t>(gradient.parameter - parameters_.data())];
  });
}

void ParameterGroup::set_counts_unused(bool value) {
  using Unused = ParameterGroupOptions::Unused;
  options_.unused = value ? Unused::zero : Unused::left_out;
}

std::vector<bool> ParameterGroup::used_anywhere(const std::vector<bool>& used_here) const {
  at::Tensor flags = at::zeros({static_cast<std::int64_t>(used_here.size())}, on_host(at::kFloat));
  for (std::size_t i = 0; i < used_here.size(); ++i)
    flags[static_cast<std::int64_t>(i)] = used_here[i] ? 1 : 0;
  for (const auto& axis : {options_.data.shard_axis, options_.data.replicate_axis}) {
    if (const auto group = options_.data.group(axis))
      flags = wait_tensor(all_reduce(flags, ReduceOp::max, *group));
  }
  std::vector<bool> used;
  for (std::int64_t i = 0; i < flags.numel(); ++i) used.push_back(flags[i].item<float>() > 0);
  return used;
}

}  // namespace meshtorch::internal

// feature_dropout and feature_alpha_dropout on distributed tensors.
#include "dispatch/feature_dropout.h"

#include <ATen/ATen.h>

#include <cmath>

#include "tensor/meta.h"
#include "tensor/random.h"

namespace meshtorch {
namespace {

// One number for each sample and channel, 1 with probability `keep`, lying as the input does, so that nothing
// has to move.
at::Tensor feature_noise(const at::Tensor& input, double keep) {
  TORCH_CHECK_VALUE(input.dim() >= 2, "meshtorch: feature dropout got a tensor with ", input.dim(),
                    " dims\n  argument: input\n  do: pass one with samples and "
                    "channels as its first two dims, or use dropout");
  const DTensorMeta& meta = distributed(input, "feature_dropout");
  Shape sizes(static_cast<std::size_t>(input.dim()), 1);
  sizes[0] = input.size(0);
  sizes[1] = input.size(1);
  Placements placements = meta.layout->placements;
  for (Placement& p : placements) {
    if (!p.is_shard(0) && !p.is_shard(1)) p = Replicate();
  }
  return random_tensor(sizes, *meta.mesh->layout(placements), meta.local.options(),
                       Distribution::bernoulli(keep));
}

// Keeps mean and variance of what selu gives; LibTorch's formula.
at::Tensor alpha_dropped(const at::Tensor& input, const at::Tensor& noise, double p) {
  constexpr double kAlpha = 1.7580993408473766;
  const double a = 1 / std::sqrt((kAlpha * kAlpha * p + 1) * (1 - p));
  const at::Tensor shift = noise.add(-1).mul(kAlpha * a).add(kAlpha * a * p);
  return input.mul(noise.mul(a)).add(shift);
}

}  // namespace

bool is_feature_dropout(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  return name.starts_with("aten::feature_dropout") || name.starts_with("aten::feature_alpha_dropout");
}

bool run_feature_dropout(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const std::size_t base = stack.size() - 3;
  const at::Tensor input = stack[base].toTensor();
  const double p = stack[base + 1].toDouble();
  if (!stack[base + 2].toBool() || !(p > 0 && p < 1) || input.numel() == 0 || meta_of(input) == nullptr)
    return false;
  const at::Tensor noise = feature_noise(input, 1 - p);
  const std::string& name = op.operator_name().name;
  at::Tensor result =
      name.find("alpha") == std::string::npos ? input.mul(noise.div(1 - p)) : alpha_dropped(input, noise, p);
  if (name.ends_with('_')) result = input.copy_(result);
  stack.resize(base);
  stack.emplace_back(std::move(result));
  return true;
}

}  // namespace meshtorch

// How the parameters of the modules that can be split are split, by columns (outputs) and by rows (inputs).
#include "nn/partition.h"

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

namespace meshtorch::internal {
namespace {

using Kind = SplittableModule::Kind;

template <class Impl>
std::optional<SplittableModule> as_convolution(torch::nn::Module& module, std::int64_t space) {
  const auto* conv = dynamic_cast<Impl*>(&module);
  if (conv == nullptr) return std::nullopt;
  return SplittableModule{Kind::convolution, conv->options.in_channels(), space, conv->options.groups()};
}

// Channels stand before space.
std::int64_t channel_dim(const SplittableModule& conv) { return -(conv.space + 1); }

void check_groups(const SplittableModule& module) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      module.groups == 1,
      "meshtorch: a convolution with groups cannot be split by channel\n  groups: ", module.groups,
      "\n  do: leave it replicated, or split its input along another dim");
}

}  // namespace

std::optional<SplittableModule> as_splittable(torch::nn::Module& module) {
  if (const auto* linear = dynamic_cast<torch::nn::LinearImpl*>(&module)) {
    return SplittableModule{Kind::linear, linear->options.in_features()};
  }
  if (dynamic_cast<torch::nn::EmbeddingImpl*>(&module) != nullptr) {
    return SplittableModule{Kind::embedding, 0};
  }
  if (auto conv = as_convolution<torch::nn::Conv1dImpl>(module, 1)) return conv;
  if (auto conv = as_convolution<torch::nn::Conv2dImpl>(module, 2)) return conv;
  return as_convolution<torch::nn::Conv3dImpl>(module, 3);
}

Partition split_by_columns(const SplittableModule& module) {
  check_groups(module);
  switch (module.kind) {
    case Kind::linear:
      return {{{"weight", Shard(0)}, {"bias", Shard(0)}}, Replicate(), Shard(-1)};
    case Kind::embedding:
      return {{{"weight", Shard(1)}}, Replicate(), Shard(-1)};
    default:
      return {{{"weight", Shard(0)}, {"bias", Shard(0)}}, Replicate(), Shard(channel_dim(module))};
  }
}

Partition split_by_rows(const SplittableModule& module) {
  check_groups(module);
  switch (module.kind) {
    case Kind::linear:
      return {{{"weight", Shard(1)}}, Shard(-1), Partial(), KnownSize{-1, module.inputs}};
    case Kind::embedding:
      return {{{"weight", Shard(0)}}, Replicate(), Partial()};
    default:
      return {{{"weight", Shard(1)}},
              Shard(channel_dim(module)),
              Partial(),
              KnownSize{channel_dim(module), module.inputs}};
  }
}

}  // namespace meshtorch::internal

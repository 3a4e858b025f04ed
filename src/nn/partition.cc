// How the parameters of the modules that can be split are split, by columns (outputs) and by rows (inputs).
#include "nn/partition.h"

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

namespace meshtorch {
namespace {

// What is common to the convolutions: channels stand before space.
struct Convolution {
  std::int64_t channel_dim;
  std::int64_t in_channels;
};

template <class Impl>
std::optional<Convolution> as_convolution(torch::nn::Module& module, std::int64_t space) {
  const auto* conv = dynamic_cast<Impl*>(&module);
  if (conv == nullptr) return std::nullopt;
  TORCH_CHECK_NOT_IMPLEMENTED(
      conv->options.groups() == 1,
      "meshtorch: a convolution with groups cannot be split by channel\n  groups: ", conv->options.groups(),
      "\n  do: leave it replicated, or split its input along another dim");
  return Convolution{-(space + 1), conv->options.in_channels()};
}

std::optional<Convolution> as_convolution(torch::nn::Module& module) {
  if (auto conv = as_convolution<torch::nn::Conv1dImpl>(module, 1)) return conv;
  if (auto conv = as_convolution<torch::nn::Conv2dImpl>(module, 2)) return conv;
  return as_convolution<torch::nn::Conv3dImpl>(module, 3);
}

}  // namespace

std::optional<Partition> split_by_columns(torch::nn::Module& module) {
  if (dynamic_cast<torch::nn::LinearImpl*>(&module) != nullptr) {
    return Partition{{{"weight", Shard(0)}, {"bias", Shard(0)}}, Replicate(), Shard(-1)};
  }
  if (dynamic_cast<torch::nn::EmbeddingImpl*>(&module) != nullptr)
    return Partition{{{"weight", Shard(1)}}, Replicate(), Shard(-1)};
  if (const auto conv = as_convolution(module)) {
    return Partition{{{"weight", Shard(0)}, {"bias", Shard(0)}}, Replicate(), Shard(conv->channel_dim)};
  }
  return std::nullopt;
}

std::optional<Partition> split_by_rows(torch::nn::Module& module) {
  if (const auto* linear = dynamic_cast<torch::nn::LinearImpl*>(&module)) {
    return Partition{
        {{"weight", Shard(1)}}, Shard(-1), Partial(), KnownSize{-1, linear->options.in_features()}};
  }
  if (dynamic_cast<torch::nn::EmbeddingImpl*>(&module) != nullptr)
    return Partition{{{"weight", Shard(0)}}, Replicate(), Partial()};
  if (const auto conv = as_convolution(module)) {
    return Partition{{{"weight", Shard(1)}},
                     Shard(conv->channel_dim),
                     Partial(),
                     KnownSize{conv->channel_dim, conv->in_channels}};
  }
  return std::nullopt;
}

}  // namespace meshtorch

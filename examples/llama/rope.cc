// Rotary embedding as transformers computes it, in float32 whatever the model's type is.
#include "rope.h"

#include <ATen/ATen.h>

#include <cmath>
#include <numbers>

namespace llama {
namespace {

// Long wavelengths are stretched, short ones kept, those between blended.
torch::Tensor llama3_scaled(const torch::Tensor& frequencies, const RopeConfig& rope) {
  const auto original = static_cast<double>(rope.original_max_positions);
  const torch::Tensor wavelength = 2 * std::numbers::pi / frequencies;
  const torch::Tensor kept =
      ((original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor))
          .clamp(0, 1);
  return (1 - kept) * frequencies / rope.factor + kept * frequencies;
}

// "dynamic": beyond the length it was trained on, the base grows with the length.
double grown_theta(const Config& config, std::int64_t length) {
  const RopeConfig& rope = config.rope;
  const std::int64_t trained =
      rope.original_max_positions > 0 ? rope.original_max_positions : config.max_positions;
  if (length <= trained) return rope.theta;
  const auto ratio = static_cast<double>(length) / static_cast<double>(trained);
  const auto dim = static_cast<double>(config.head_dim);
  return rope.theta * std::pow(rope.factor * ratio - (rope.factor - 1), dim / (dim - 2));
}

// One frequency for each pair of a head.
torch::Tensor frequencies_of(const Config& config, std::int64_t length, const torch::Device& device) {
  const RopeConfig& rope = config.rope;
  const double theta = rope.type == "dynamic" ? grown_theta(config, length) : rope.theta;
  const auto options = torch::TensorOptions(torch::kFloat).device(device);
  const torch::Tensor exponents =
      at::arange(0, config.head_dim, 2, options) / static_cast<double>(config.head_dim);
  const torch::Tensor frequencies = 1 / at::pow(theta, exponents);
  if (rope.type == "linear") return frequencies / rope.factor;
  if (rope.type == "llama3") return llama3_scaled(frequencies, rope);
  return frequencies;
}

}  // namespace

Rotation rotation_of(const torch::Tensor& positions_BS, std::int64_t length, const Config& config,
                     torch::Dtype dtype) {
  const torch::Tensor frequencies = frequencies_of(config, length, positions_BS.device());
  const torch::Tensor half_B1S = positions_BS.to(torch::kFloat).unsqueeze(1).unsqueeze(-1) * frequencies;
  const torch::Tensor angles_B1SC = at::cat({half_B1S, half_B1S}, -1);
  return {angles_B1SC.cos().to(dtype), angles_B1SC.sin().to(dtype)};
}

torch::Tensor rotate(const torch::Tensor& x_BHSC, const Rotation& rotation) {
  const std::vector<torch::Tensor> halves = x_BHSC.chunk(2, -1);
  return x_BHSC * rotation.cos_B1SC + at::cat({-halves[1], halves[0]}, -1) * rotation.sin_B1SC;
}

}  // namespace llama

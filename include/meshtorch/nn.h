// LibTorch's modules with hooks: the same options, parameters and results, so that torch::nn:: becomes
// meshtorch::nn:: and nothing else in a model changes.
#pragma once

#include <torch/nn/modules.h>

#include "meshtorch/api.h"
#include "meshtorch/dtensor.h"
#include "meshtorch/hooked.h"

// torch::nn::Sequential asks for the exact type that a module takes: a DTensor goes in as the tensor that it
// is.
template <>
struct torch::nn::AnyValue::Holder<meshtorch::DTensor> : torch::nn::AnyValue::Holder<at::Tensor> {
  using Holder<at::Tensor>::Holder;
};

namespace meshtorch::nn {

// What RMSNorm takes: the shape of the last dims, and eps (default: the smallest step of the input's type at
// 1).
struct RMSNormOptions {
  RMSNormOptions(std::vector<std::int64_t> shape) : normalized_shape(std::move(shape)) {}
  RMSNormOptions(std::int64_t size) : normalized_shape{size} {}

  RMSNormOptions& set_eps(std::optional<double> value) {
    eps = value;
    return *this;
  }
  RMSNormOptions& set_elementwise_affine(bool value) {
    elementwise_affine = value;
    return *this;
  }

  std::vector<std::int64_t> normalized_shape;
  std::optional<double> eps = std::nullopt;
  bool elementwise_affine = true;
};

// Divides by the root of the mean square over the last dims. LibTorch's C++ API has no such module.
class MESHTORCH_API RMSNormImpl : public torch::nn::Cloneable<RMSNormImpl> {
 public:
  explicit RMSNormImpl(RMSNormOptions options_);
  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  torch::Tensor forward(const torch::Tensor& input);

  RMSNormOptions options;
  torch::Tensor weight;  // undefined if not elementwise_affine
};
MESHTORCH_MODULE(RMSNorm);

#define MESHTORCH_NN(Name) MESHTORCH_MODULE_IMPL(Name, torch::nn::Name##Impl)

MESHTORCH_NN(Identity);
MESHTORCH_NN(Linear);
MESHTORCH_NN(Bilinear);
MESHTORCH_NN(Flatten);
MESHTORCH_NN(Embedding);
MESHTORCH_NN(EmbeddingBag);
MESHTORCH_NN(Conv1d);
MESHTORCH_NN(Conv2d);
MESHTORCH_NN(Conv3d);
MESHTORCH_NN(ConvTranspose1d);
MESHTORCH_NN(ConvTranspose2d);
MESHTORCH_NN(ConvTranspose3d);
MESHTORCH_NN(LayerNorm);
MESHTORCH_NN(GroupNorm);
MESHTORCH_NN(LocalResponseNorm);
MESHTORCH_NN(BatchNorm1d);
MESHTORCH_NN(BatchNorm2d);
MESHTORCH_NN(BatchNorm3d);
MESHTORCH_NN(InstanceNorm1d);
MESHTORCH_NN(InstanceNorm2d);
MESHTORCH_NN(InstanceNorm3d);
MESHTORCH_NN(Dropout);
MESHTORCH_NN(Dropout2d);
MESHTORCH_NN(Dropout3d);
MESHTORCH_NN(AlphaDropout);
MESHTORCH_NN(ReLU);
MESHTORCH_NN(ReLU6);
MESHTORCH_NN(LeakyReLU);
MESHTORCH_NN(PReLU);
MESHTORCH_NN(ELU);
MESHTORCH_NN(SELU);
MESHTORCH_NN(CELU);
MESHTORCH_NN(GLU);
MESHTORCH_NN(Hardtanh);
MESHTORCH_NN(LogSigmoid);
MESHTORCH_NN(Softsign);
MESHTORCH_NN(Threshold);
MESHTORCH_NN(GELU);
MESHTORCH_NN(SiLU);
MESHTORCH_NN(Mish);
MESHTORCH_NN(Tanh);
MESHTORCH_NN(Sigmoid);
MESHTORCH_NN(Softplus);
MESHTORCH_NN(Softmax);
MESHTORCH_NN(LogSoftmax);
MESHTORCH_NN(MaxPool1d);
MESHTORCH_NN(MaxPool2d);
MESHTORCH_NN(MaxPool3d);
MESHTORCH_NN(AvgPool1d);
MESHTORCH_NN(AvgPool2d);
MESHTORCH_NN(AvgPool3d);
MESHTORCH_NN(AdaptiveAvgPool1d);
MESHTORCH_NN(AdaptiveAvgPool2d);
MESHTORCH_NN(AdaptiveAvgPool3d);
MESHTORCH_NN(AdaptiveMaxPool1d);
MESHTORCH_NN(AdaptiveMaxPool2d);
MESHTORCH_NN(PixelShuffle);
MESHTORCH_NN(Upsample);
MESHTORCH_NN(RNN);
MESHTORCH_NN(LSTM);
MESHTORCH_NN(GRU);
MESHTORCH_NN(RNNCell);
MESHTORCH_NN(LSTMCell);
MESHTORCH_NN(GRUCell);
MESHTORCH_NN(MultiheadAttention);
MESHTORCH_NN(TransformerEncoderLayer);
MESHTORCH_NN(TransformerDecoderLayer);
MESHTORCH_NN(TransformerEncoder);
MESHTORCH_NN(TransformerDecoder);
MESHTORCH_NN(Transformer);
MESHTORCH_NN(L1Loss);
MESHTORCH_NN(MSELoss);
MESHTORCH_NN(SmoothL1Loss);
MESHTORCH_NN(HuberLoss);
MESHTORCH_NN(KLDivLoss);
MESHTORCH_NN(BCELoss);
MESHTORCH_NN(BCEWithLogitsLoss);
MESHTORCH_NN(NLLLoss);
MESHTORCH_NN(CrossEntropyLoss);

#undef MESHTORCH_NN

}  // namespace meshtorch::nn

// Every module of LibTorch's C++ interface, unmodified, on parameters and inputs that lie in many ways,
// against one device. C++ modules are written in other operators than Python's.
#include "numbers.h"

namespace meshtorch::testing {
namespace {

namespace nn = torch::nn;
using mt::Placement;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

void append(Tensors& all, const Tensor& t) { all.push_back(t); }
template <class... Parts>
void append(Tensors& all, const std::tuple<Parts...>& parts) {
  std::apply([&](const auto&... part) { (append(all, part), ...); }, parts);
}

// One input: real numbers, numbers between 0 and 1, signs, or indices below `limit`.
struct Input {
  std::vector<int64_t> sizes;
  char kind = 'f';
  int64_t limit = 0;

  Tensor make(int64_t seed) const {
    const Tensor base = numbers(sizes, torch::kDouble, seed);
    if (kind == 'u') return (base + 2.5) / 5;
    if (kind == 's') return torch::where(base > 0, 1.0, -1.0).to(torch::kDouble);
    if (kind == 'i') return (base * 4 + 8).to(torch::kLong).remainder(limit);
    return base;
  }
};

struct ModuleCase {
  std::string name;
  std::vector<Input> inputs;
  std::function<std::shared_ptr<nn::Module>()> make;
  std::function<Tensors(nn::Module&, const Tensors&)> forward;
};

template <class Impl, class Forward>
ModuleCase of_module(const std::string& name, std::vector<Input> inputs,
                     const std::function<std::shared_ptr<Impl>()>& make, const Forward& forward) {
  return {name, std::move(inputs), make, [forward](nn::Module& module, const Tensors& x) {
            Tensors results;
            append(results, forward(dynamic_cast<Impl&>(module), x));
            return results;
          }};
}

// Options, or a function that makes them where they hold tensors, which no two modules may share.
template <class Options>
auto made(const Options& options) {
  if constexpr (std::is_invocable_v<const Options&>) {
    return options();
  } else {
    return options;
  }
}

// A module made of options, whose forward takes as many tensors as there are inputs.
template <class Impl, class Options>
ModuleCase one(const std::string& name, std::vector<Input> inputs, const Options& options) {
  return of_module<Impl>(
      name, std::move(inputs), [options] { return std::make_shared<Impl>(made(options)); },
      [](Impl& module, const Tensors& x) { return module.forward(x[0]); });
}
template <class Impl>
ModuleCase one(const std::string& name, std::vector<Input> inputs) {
  return of_module<Impl>(
      name, std::move(inputs), [] { return std::make_shared<Impl>(); },
      [](Impl& module, const Tensors& x) { return module.forward(x[0]); });
}
template <class Impl, class Options>
ModuleCase two(const std::string& name, std::vector<Input> inputs, const Options& options) {
  return of_module<Impl>(
      name, std::move(inputs), [options] { return std::make_shared<Impl>(made(options)); },
      [](Impl& module, const Tensors& x) { return module.forward(x[0], x[1]); });
}
template <class Impl, class Options>
ModuleCase three(const std::string& name, std::vector<Input> inputs, const Options& options) {
  return of_module<Impl>(
      name, std::move(inputs), [options] { return std::make_shared<Impl>(made(options)); },
      [](Impl& module, const Tensors& x) { return module.forward(x[0], x[1], x[2]); });
}

const std::vector<int64_t> kLine{4, 6, 8}, kPlane{4, 6, 5, 8}, kSpace{2, 6, 4, 5, 6};

std::vector<ModuleCase> convolutions() {
  return {
      one<nn::Conv1dImpl>("Conv1d", {{kLine}}, nn::Conv1dOptions(6, 4, 3).stride(2).padding(1)),
      one<nn::Conv1dImpl>("Conv1d, circular", {{kLine}},
                          nn::Conv1dOptions(6, 4, 3).padding(1).padding_mode(torch::kCircular)),
      one<nn::Conv2dImpl>("Conv2d, groups", {{kPlane}},
                          nn::Conv2dOptions(6, 9, 3).groups(3).dilation(2).padding(2)),
      one<nn::Conv2dImpl>("Conv2d, reflect", {{kPlane}},
                          nn::Conv2dOptions(6, 4, 3).padding(1).padding_mode(torch::kReflect)),
      one<nn::Conv2dImpl>("Conv2d, same", {{kPlane}},
                          nn::Conv2dOptions(6, 4, 3).padding(torch::kSame).bias(false)),
      one<nn::Conv3dImpl>("Conv3d", {{kSpace}}, nn::Conv3dOptions(6, 4, 2).stride(2)),
      one<nn::ConvTranspose1dImpl>("ConvTranspose1d", {{kLine}},
                                   nn::ConvTranspose1dOptions(6, 4, 3).stride(2)),
      one<nn::ConvTranspose2dImpl>("ConvTranspose2d, groups", {{kPlane}},
                                   nn::ConvTranspose2dOptions(6, 4, 3).groups(2).stride(2).output_padding(1)),
      one<nn::ConvTranspose3dImpl>("ConvTranspose3d", {{kSpace}}, nn::ConvTranspose3dOptions(6, 2, 2)),
      one<nn::UnfoldImpl>("Unfold", {{kPlane}}, nn::UnfoldOptions({2, 3}).padding(1)),
      one<nn::FoldImpl>("Fold", {{{2, 12, 12}}}, nn::FoldOptions({4, 5}, {2, 2})),
  };
}

std::vector<ModuleCase> norms() {
  return {
      one<nn::BatchNorm1dImpl>("BatchNorm1d", {{kLine}}, nn::BatchNormOptions(6)),
      one<nn::BatchNorm2dImpl>("BatchNorm2d, mean of all", {{kPlane}},
                               nn::BatchNormOptions(6).momentum(std::nullopt)),
      one<nn::BatchNorm3dImpl>("BatchNorm3d, no state", {{kSpace}},
                               nn::BatchNormOptions(6).track_running_stats(false).affine(false)),
      one<nn::InstanceNorm1dImpl>("InstanceNorm1d", {{kLine}}, nn::InstanceNormOptions(6).affine(true)),
      one<nn::InstanceNorm2dImpl>("InstanceNorm2d, state", {{kPlane}},
                                  nn::InstanceNormOptions(6).track_running_stats(true)),
      one<nn::InstanceNorm3dImpl>("InstanceNorm3d", {{kSpace}}, nn::InstanceNormOptions(6)),
      one<nn::LayerNormImpl>("LayerNorm", {{kPlane}}, nn::LayerNormOptions({5, 8})),
      one<nn::GroupNormImpl>("GroupNorm", {{kPlane}}, nn::GroupNormOptions(3, 6)),
      one<nn::LocalResponseNormImpl>("LocalResponseNorm", {{kPlane}}, nn::LocalResponseNormOptions(2)),
  };
}

std::vector<ModuleCase> pools() {
  return {
      one<nn::AvgPool1dImpl>("AvgPool1d", {{kLine}}, nn::AvgPool1dOptions(3).stride(2).padding(1)),
      one<nn::AvgPool2dImpl>("AvgPool2d", {{kPlane}},
                             nn::AvgPool2dOptions(2).count_include_pad(false).padding(1)),
      one<nn::AvgPool3dImpl>("AvgPool3d", {{kSpace}}, nn::AvgPool3dOptions(2)),
      one<nn::MaxPool1dImpl>("MaxPool1d", {{kLine}}, nn::MaxPool1dOptions(3).stride(2)),
      one<nn::MaxPool2dImpl>("MaxPool2d", {{kPlane}}, nn::MaxPool2dOptions(2).dilation(2).ceil_mode(true)),
      one<nn::MaxPool3dImpl>("MaxPool3d", {{kSpace}}, nn::MaxPool3dOptions(2)),
      one<nn::AdaptiveAvgPool1dImpl>("AdaptiveAvgPool1d", {{kLine}}, nn::AdaptiveAvgPool1dOptions(3)),
      one<nn::AdaptiveAvgPool2dImpl>("AdaptiveAvgPool2d", {{kPlane}}, nn::AdaptiveAvgPool2dOptions({3, 2})),
      one<nn::AdaptiveAvgPool3dImpl>("AdaptiveAvgPool3d", {{kSpace}},
                                     nn::AdaptiveAvgPool3dOptions({2, 3, 1})),
      one<nn::AdaptiveMaxPool1dImpl>("AdaptiveMaxPool1d", {{kLine}}, nn::AdaptiveMaxPool1dOptions(3)),
      one<nn::AdaptiveMaxPool2dImpl>("AdaptiveMaxPool2d", {{kPlane}}, nn::AdaptiveMaxPool2dOptions({3, 2})),
      one<nn::AdaptiveMaxPool3dImpl>("AdaptiveMaxPool3d", {{kSpace}},
                                     nn::AdaptiveMaxPool3dOptions({2, 3, 1})),
      one<nn::LPPool1dImpl>("LPPool1d", {{kLine, 'u'}}, nn::LPPool1dOptions(2, 3)),
      one<nn::LPPool2dImpl>("LPPool2d", {{kPlane, 'u'}}, nn::LPPool2dOptions(3, 2)),
      one<nn::LPPool3dImpl>("LPPool3d", {{kSpace, 'u'}}, nn::LPPool3dOptions(2, 2)),
      of_module<nn::MaxPool2dImpl>(
          "MaxPool2d with MaxUnpool2d", {{kPlane}},
          [] { return std::make_shared<nn::MaxPool2dImpl>(nn::MaxPool2dOptions(2)); },
          [](nn::MaxPool2dImpl& pool, const Tensors& x) {
            const auto [y, at] = pool.forward_with_indices(x[0]);
            return nn::MaxUnpool2dImpl(nn::MaxUnpool2dOptions(2)).forward(y, at);
          }),
      one<nn::UpsampleImpl>("Upsample, nearest", {{kLine}},
                            nn::UpsampleOptions().scale_factor(std::vector<double>{2}).mode(torch::kNearest)),
      one<nn::UpsampleImpl>(
          "Upsample, bilinear", {{kPlane}},
          nn::UpsampleOptions().size(std::vector<int64_t>{7, 3}).mode(torch::kBilinear).align_corners(true)),
      one<nn::UpsampleImpl>("Upsample, bicubic", {{kPlane}},
                            nn::UpsampleOptions()
                                .scale_factor(std::vector<double>{2, 1.5})
                                .mode(torch::kBicubic)
                                .align_corners(false)),
      one<nn::PixelShuffleImpl>("PixelShuffle", {{{3, 8, 3, 2}}}, nn::PixelShuffleOptions(2)),
      one<nn::PixelUnshuffleImpl>("PixelUnshuffle", {{{3, 2, 6, 4}}}, nn::PixelUnshuffleOptions(2)),
  };
}

std::vector<ModuleCase> pads() {
  return {
      one<nn::ConstantPad1dImpl>("ConstantPad1d", {{kLine}}, nn::ConstantPad1dOptions({1, 2}, 3.5)),
      one<nn::ConstantPad3dImpl>("ConstantPad3d", {{kSpace}},
                                 nn::ConstantPad3dOptions({1, 2, 0, 1, 2, 0}, 3.5)),
      one<nn::ReflectionPad1dImpl>("ReflectionPad1d", {{kLine}}, nn::ReflectionPad1dOptions({1, 2})),
      one<nn::ReflectionPad2dImpl>("ReflectionPad2d", {{kPlane}}, nn::ReflectionPad2dOptions({1, 2, 0, 1})),
      one<nn::ReflectionPad3dImpl>("ReflectionPad3d", {{kSpace}}, nn::ReflectionPad3dOptions(1)),
      one<nn::ReplicationPad1dImpl>("ReplicationPad1d", {{kLine}}, nn::ReplicationPad1dOptions({1, 2})),
      one<nn::ReplicationPad2dImpl>("ReplicationPad2d", {{kPlane}},
                                    nn::ReplicationPad2dOptions({1, 2, 0, 1})),
      one<nn::ReplicationPad3dImpl>("ReplicationPad3d", {{kSpace}}, nn::ReplicationPad3dOptions(1)),
      one<nn::ZeroPad2dImpl>("ZeroPad2d", {{kPlane}}, nn::ZeroPad2dOptions({1, 2, 0, 1})),
      one<nn::FlattenImpl>("Flatten", {{kPlane}}, nn::FlattenOptions().start_dim(1).end_dim(2)),
      one<nn::UnflattenImpl>("Unflatten", {{kPlane}}, nn::UnflattenOptions(1, {2, 3})),
  };
}

std::vector<ModuleCase> activations() {
  return {
      one<nn::ELUImpl>("ELU", {{kLine}}, nn::ELUOptions().alpha(0.5)),
      one<nn::SELUImpl>("SELU", {{kLine}}),
      one<nn::CELUImpl>("CELU", {{kLine}}, nn::CELUOptions().alpha(2)),
      one<nn::GELUImpl>("GELU", {{kLine}}, nn::GELUOptions().approximate("tanh")),
      one<nn::GLUImpl>("GLU", {{kLine}}, nn::GLUOptions(1)),
      one<nn::HardshrinkImpl>("Hardshrink", {{kLine}}),
      one<nn::HardtanhImpl>("Hardtanh", {{kLine}}),
      one<nn::LeakyReLUImpl>("LeakyReLU", {{kLine}}),
      one<nn::LogSigmoidImpl>("LogSigmoid", {{kLine}}),
      one<nn::LogSoftmaxImpl>("LogSoftmax", {{kLine}}, nn::LogSoftmaxOptions(1)),
      one<nn::MishImpl>("Mish", {{kLine}}),
      one<nn::PReLUImpl>("PReLU", {{kLine}}, nn::PReLUOptions().num_parameters(6)),
      one<nn::ReLU6Impl>("ReLU6", {{kLine}}),
      one<nn::SiLUImpl>("SiLU", {{kLine}}),
      one<nn::SoftmaxImpl>("Softmax", {{kLine}}, nn::SoftmaxOptions(2)),
      one<nn::Softmax2dImpl>("Softmax2d", {{kPlane}}),
      one<nn::SoftminImpl>("Softmin", {{kLine}}, nn::SoftminOptions(0)),
      one<nn::SoftplusImpl>("Softplus", {{kLine}}),
      one<nn::SoftshrinkImpl>("Softshrink", {{kLine}}),
      one<nn::SoftsignImpl>("Softsign", {{kLine}}),
      one<nn::TanhshrinkImpl>("Tanhshrink", {{kLine}}),
      one<nn::ThresholdImpl>("Threshold", {{kLine}}, nn::ThresholdOptions(0.1, 20)),
      two<nn::CosineSimilarityImpl>("CosineSimilarity", {{kLine}, {kLine}},
                                    nn::CosineSimilarityOptions().dim(1)),
      two<nn::PairwiseDistanceImpl>("PairwiseDistance", {{{5, 6}}, {{5, 6}, 'u'}},
                                    nn::PairwiseDistanceOptions().p(3)),
      two<nn::BilinearImpl>("Bilinear", {{{5, 4}}, {{5, 3}}}, nn::BilinearOptions(4, 3, 6)),
      one<nn::LinearImpl>("Linear", {{kLine}}, nn::LinearOptions(8, 5)),
      one<nn::EmbeddingImpl>("Embedding", {{{5, 4}, 'i', 7}}, nn::EmbeddingOptions(7, 6).padding_idx(2)),
      two<nn::EmbeddingBagImpl>("EmbeddingBag", {{{12}, 'i', 7}, {{3}, 'i', 1}},
                                nn::EmbeddingBagOptions(7, 6).mode(torch::kSum)),
      one<nn::EmbeddingBagImpl>("EmbeddingBag of rows", {{{5, 4}, 'i', 7}},
                                nn::EmbeddingBagOptions(7, 6).mode(torch::kMean)),
  };
}

std::vector<ModuleCase> losses() {
  const auto weights = [] { return numbers({4}, torch::kDouble).abs() + 1; };
  const Input x{{6, 4}}, u{{6, 4}, 'u'}, classes{{6}, 'i', 4}, signs{{6}, 's'};
  return {
      two<nn::L1LossImpl>("L1Loss", {x, u}, nn::L1LossOptions(torch::kMean)),
      two<nn::MSELossImpl>("MSELoss", {x, u}, nn::MSELossOptions(torch::kSum)),
      two<nn::HuberLossImpl>("HuberLoss", {x, u}, nn::HuberLossOptions().delta(0.7)),
      two<nn::SmoothL1LossImpl>("SmoothL1Loss", {x, u}, nn::SmoothL1LossOptions().beta(0.7)),
      two<nn::BCELossImpl>("BCELoss", {u, u}, nn::BCELossOptions()),
      two<nn::BCEWithLogitsLossImpl>("BCEWithLogitsLoss", {x, u},
                                     [=] { return nn::BCEWithLogitsLossOptions().pos_weight(weights()); }),
      two<nn::KLDivLossImpl>("KLDivLoss", {x, u}, nn::KLDivLossOptions(torch::kBatchMean)),
      two<nn::PoissonNLLLossImpl>("PoissonNLLLoss", {x, u}, nn::PoissonNLLLossOptions().full(true)),
      two<nn::HingeEmbeddingLossImpl>("HingeEmbeddingLoss", {x, {{6, 4}, 's'}},
                                      nn::HingeEmbeddingLossOptions()),
      two<nn::SoftMarginLossImpl>("SoftMarginLoss", {x, {{6, 4}, 's'}}, nn::SoftMarginLossOptions()),
      two<nn::MultiMarginLossImpl>("MultiMarginLoss", {x, classes}, nn::MultiMarginLossOptions().p(2)),
      two<nn::MultiLabelMarginLossImpl>("MultiLabelMarginLoss", {x, {{6, 4}, 'i', 4}},
                                        nn::MultiLabelMarginLossOptions()),
      two<nn::MultiLabelSoftMarginLossImpl>("MultiLabelSoftMarginLoss", {x, u},
                                            nn::MultiLabelSoftMarginLossOptions()),
      two<nn::NLLLossImpl>("NLLLoss", {x, classes},
                           [=] { return nn::NLLLossOptions().weight(weights()).ignore_index(2); }),
      two<nn::CrossEntropyLossImpl>(
          "CrossEntropyLoss", {x, classes},
          [=] { return nn::CrossEntropyLossOptions().weight(weights()).label_smoothing(0.1); }),
      two<nn::CrossEntropyLossImpl>("CrossEntropyLoss of planes", {{{3, 4, 5}}, {{3, 5}, 'i', 4}},
                                    nn::CrossEntropyLossOptions().reduction(torch::kNone)),
      three<nn::CosineEmbeddingLossImpl>("CosineEmbeddingLoss", {x, u, signs},
                                         nn::CosineEmbeddingLossOptions().margin(0.2)),
      three<nn::MarginRankingLossImpl>("MarginRankingLoss", {{{6}}, {{6}, 'u'}, signs},
                                       nn::MarginRankingLossOptions().margin(0.3)),
      three<nn::TripletMarginLossImpl>("TripletMarginLoss", {x, u, {{6, 4}}},
                                       nn::TripletMarginLossOptions().swap(true)),
      three<nn::TripletMarginWithDistanceLossImpl>("TripletMarginWithDistanceLoss", {x, u, {{6, 4}}},
                                                   nn::TripletMarginWithDistanceLossOptions()),
      of_module<nn::AdaptiveLogSoftmaxWithLossImpl>(
          "AdaptiveLogSoftmaxWithLoss", {{{6, 16}}, {{6}, 'i', 10}},
          [] {
            return std::make_shared<nn::AdaptiveLogSoftmaxWithLossImpl>(
                nn::AdaptiveLogSoftmaxWithLossOptions(16, 10, {4, 7}));
          },
          [](nn::AdaptiveLogSoftmaxWithLossImpl& module, const Tensors& given) {
            return module.forward(given[0], given[1]).output;
          }),
  };
}

std::vector<ModuleCase> recurrent() {
  const Input x{{5, 3, 4}};
  const auto layer = nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(12).dropout(0);
  const auto decoder = nn::TransformerDecoderLayerOptions(8, 2).dim_feedforward(12).dropout(0);
  return {
      one<nn::RNNImpl>("RNN", {x}, nn::RNNOptions(4, 6).num_layers(2).nonlinearity(torch::kReLU)),
      one<nn::LSTMImpl>("LSTM, both ways", {x}, nn::LSTMOptions(4, 6).bidirectional(true)),
      one<nn::LSTMImpl>("LSTM, projected", {x}, nn::LSTMOptions(4, 6).proj_size(3).num_layers(2)),
      one<nn::GRUImpl>("GRU, batch first", {x}, nn::GRUOptions(4, 6).batch_first(true).bias(false)),
      one<nn::RNNCellImpl>("RNNCell", {{{5, 4}}}, nn::RNNCellOptions(4, 6)),
      one<nn::LSTMCellImpl>("LSTMCell", {{{5, 4}}}, nn::LSTMCellOptions(4, 6)),
      two<nn::GRUCellImpl>("GRUCell", {{{5, 4}}, {{5, 6}}}, nn::GRUCellOptions(4, 6)),
      three<nn::MultiheadAttentionImpl>("MultiheadAttention, other sizes",
                                        {{{5, 3, 8}}, {{4, 3, 6}}, {{4, 3, 6}}},
                                        nn::MultiheadAttentionOptions(8, 2).kdim(6).vdim(6)),
      three<nn::MultiheadAttentionImpl>("MultiheadAttention, added keys",
                                        {{{5, 3, 8}}, {{4, 3, 8}}, {{4, 3, 8}}},
                                        nn::MultiheadAttentionOptions(8, 2).add_bias_kv(true)),
      one<nn::TransformerEncoderLayerImpl>("TransformerEncoderLayer", {{{5, 3, 8}}}, layer),
      two<nn::TransformerDecoderLayerImpl>("TransformerDecoderLayer", {{{5, 3, 8}}, {{4, 3, 8}}}, decoder),
      one<nn::TransformerEncoderImpl>("TransformerEncoder", {{{5, 3, 8}}},
                                      nn::TransformerEncoderOptions(layer, 2)),
      two<nn::TransformerImpl>("Transformer", {{{5, 3, 8}}, {{4, 3, 8}}},
                               nn::TransformerOptions(8, 2, 1, 1).dim_feedforward(12).dropout(0)),
  };
}

void fill(nn::Module& module) {
  const torch::NoGradGuard no_grad;
  module.to(torch::kDouble);
  int64_t seed = 0;
  for (Tensor& p : module.parameters()) p.set_data(numbers(p.sizes(), torch::kDouble, seed++) / 8);
}

// Split along dim 0 or the last, if it has dims; else whole.
Placement fitting(const Placement& wanted, const Tensor& t) {
  if (!wanted.is_shard()) return t.is_floating_point() ? wanted : mt::Replicate();
  return t.dim() == 0 || wanted.dim() >= t.dim() ? mt::Replicate() : Placement(wanted);
}

Tensor placed(const Tensor& whole, const mt::DeviceMesh& mesh, const Placement& wanted) {
  const Placement placement = fitting(wanted, whole);
  if (!placement.is_partial()) return mt::distribute_tensor(whole, mesh, {placement});
  // Terms that differ, and add up without rounding.
  const Tensor term = numbers(whole.sizes(), torch::kDouble, 50);
  const Tensor local = mesh.get_local_rank(0) == 0 ? whole - (mesh.size() - 1) * term : term;
  return mt::DTensor::from_local(local, mesh, {placement});
}

Tensors differentiated(const Tensors& results) {
  Tensors found;
  for (const Tensor& t : results) {
    if (t.defined() && t.requires_grad()) found.push_back(t);
  }
  return found;
}

// On every rank; what is wrong fails the test.
void compare(const ModuleCase& sample, const mt::DeviceMesh& mesh, const Placement& of_input,
             const Placement& of_parameters) {
  const auto plain = sample.make(), split = sample.make();
  fill(*plain);
  fill(*split);
  for (Tensor& p : split->parameters()) p.set_data(placed(p.detach(), mesh, of_parameters));
  for (Tensor& b : split->buffers()) {
    if (b.defined()) b.set_data(placed(b.detach(), mesh, mt::Replicate()));
  }
  Tensors xs, ys;
  for (std::size_t i = 0; i < sample.inputs.size(); ++i) {
    xs.push_back(sample.inputs[i].make(3 + static_cast<int64_t>(i)));
    ys.push_back(placed(xs.back(), mesh, of_input));
    const bool is_first = i == 0;  // targets need no gradients
    for (Tensor* t : {&xs.back(), &ys.back()}) t->requires_grad_(is_first && t->is_floating_point());
  }
  const Tensors expected = sample.forward(*plain, xs), actual = sample.forward(*split, ys);
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (expected[i].defined()) {
      EXPECT_TRUE(is_close(mt::full_tensor(actual[i]).detach(), expected[i].detach(), 1e-9))
          << "result " << i;
    }
  }
  const auto loss = [](const Tensors& results) {
    Tensor sum;
    for (const Tensor& t : differentiated(results))
      sum = sum.defined() ? sum + t.square().sum() : t.square().sum();
    return sum;
  };
  const Tensor plain_loss = loss(expected);
  if (!plain_loss.defined()) return;
  plain_loss.backward();
  loss(actual).backward();
  const auto same = [](const Tensor& got, const Tensor& wanted, const std::string& what) {
    ASSERT_EQ(got.defined(), wanted.defined()) << what;
    if (wanted.defined()) {
      EXPECT_TRUE(is_close(mt::full_tensor(got), wanted, 1e-8)) << what;
    }
  };
  same(ys[0].grad(), xs[0].grad(), "gradient of the input");
  for (std::size_t i = 0; i < plain->parameters().size(); ++i)
    same(split->parameters()[i].grad(), plain->parameters()[i].grad(),
         "gradient of " + plain->named_parameters()[i].key());
  for (std::size_t i = 0; i < plain->buffers().size(); ++i)
    same(split->buffers()[i], plain->buffers()[i], "buffer " + plain->named_buffers()[i].key());
}

using Family = std::pair<const char*, std::vector<ModuleCase> (*)()>;
class TorchModules : public ::testing::TestWithParam<Family> {};

TEST_P(TorchModules, AgreesWithOneDevice) {
  mt::set_fallback_policy(mt::FallbackPolicy::silent);
  const std::vector<Placement> of_inputs{mt::Replicate(), mt::Shard(0), mt::Shard(1), mt::Shard(2),
                                         mt::Partial()};
  const std::vector<Placement> of_parameters{mt::Replicate(), mt::Shard(0), mt::Shard(1)};
  for (const ModuleCase& sample : GetParam().second()) {
    on_ranks(3, [&](int rank) {
      const mt::DeviceMesh mesh = line(3);
      for (const Placement& x : of_inputs) {
        for (const Placement& p : of_parameters) {
          SCOPED_TRACE(c10::str(sample.name, ": input ", x.to_string(), ", parameters ", p.to_string(),
                                ", rank ", rank));
          compare(sample, mesh, x, p);
        }
      }
    });
  }
  mt::set_fallback_policy(mt::FallbackPolicy::warn);
}

INSTANTIATE_TEST_SUITE_P(Modules, TorchModules,
                         ::testing::Values(Family("convolutions", convolutions), Family("norms", norms),
                                           Family("pools", pools), Family("pads", pads),
                                           Family("activations", activations), Family("losses", losses),
                                           Family("recurrent", recurrent)),
                         [](const auto& instance) { return std::string(instance.param.first); });

}  // namespace
}  // namespace meshtorch::testing

// Twenty steps of training, one table: every kind of data parallelism, alone and with tensor and sequence
// parallelism, beside one device.
#include "data_parallel_training.h"

namespace meshtorch::testing {
namespace {

using mt::ColwiseParallel;
using mt::Replicate;
using mt::RowwiseParallel;
using mt::Shard;

constexpr int kSteps = 20;
constexpr int64_t kWords = 11;

struct GptImpl : torch::nn::Module {
  GptImpl(int64_t width, int64_t hidden, int64_t depth)
      : words(torch::nn::EmbeddingOptions(kWords, width)),
        norm(torch::nn::LayerNormOptions({width})),
        head(width, kWords) {
    register_module("words", words);
    for (int64_t i = 0; i < depth; ++i) {
      layers.push_back(Block(width, 2, hidden));
      register_module("layer" + std::to_string(i), layers.back());
    }
    register_module("norm", norm);
    register_module("head", head);
  }
  torch::Tensor forward(torch::Tensor ids_BS) {
    torch::Tensor x_BSD = words(ids_BS);
    for (Block& layer : layers) x_BSD = layer(x_BSD);
    return head(norm(x_BSD));
  }
  mt::nn::Embedding words;
  std::vector<Block> layers;
  mt::nn::LayerNorm norm;
  mt::nn::Linear head;
};
MESHTORCH_MODULE(Gpt);

enum class Kind : std::uint8_t { replicate, shard, hybrid };

struct ParallelTrainingCase {
  std::string name;
  Kind kind;
  int data;
  int tensor = 1;
  bool splits_sequence = false;
  torch::ScalarType type = torch::kDouble;
  int64_t hidden = 12;
  int micro_batches = 1;
  double longest_gradient = 0;  // clipped if longer
  bool computes_in_bfloat16 = false;

  int ranks() const { return data * tensor; }
  double tolerance() const { return type == torch::kDouble ? 1e-9 : 1e-5; }
};

mt::DeviceMesh mesh_of(const ParallelTrainingCase& c) {
  if (c.kind == Kind::hybrid)
    return mt::init_device_mesh(torch::kCPU, {2, c.data / 2, c.tensor}, {"replicate", "shard", "tp"});
  return mt::init_device_mesh(torch::kCPU, {c.data, c.tensor}, {"dp", "tp"});
}

mt::DeviceMesh data_axes(const ParallelTrainingCase& c, const mt::DeviceMesh& mesh) {
  return c.kind == Kind::hybrid ? mesh[{"replicate", "shard"}] : mesh["dp"];
}

template <class Holder>
void make_parallel(Holder& model, const ParallelTrainingCase& c, const mt::DeviceMesh& data) {
  mt::MixedPrecisionPolicy policy;
  if (c.computes_in_bfloat16)
    policy = {.param_dtype = torch::kBFloat16, .reduce_dtype = torch::kFloat, .output_dtype = torch::kFloat};
  if (c.kind == Kind::replicate) {
    mt::replicate(*model, data, {.bucket_bytes = 900, .first_bucket_bytes = 200, .mp_policy = policy});
    return;
  }
  mt::MixedPrecisionPolicy inside = policy;
  inside.output_dtype = std::nullopt;
  for (auto& layer : model->layers) mt::fully_shard(*layer, data, {.mp_policy = inside});
  mt::fully_shard(*model, data, {.mp_policy = policy});
}

// Models of the table: how they are made, split over tp, fed, and judged.
struct TowerModel {
  using Holder = Tower;
  static Holder make(const ParallelTrainingCase& c) { return filled(Tower(8, c.hidden, 2)); }
  static mt::ParallelizePlan plan(const ParallelTrainingCase&) {
    return {{"layer*.up", ColwiseParallel()}, {"layer*.down", RowwiseParallel()}, {"norm", mt::NoParallel()}};
  }
  static torch::Tensor batch(int64_t rows, int64_t step) {
    return numbers({rows, 8}, torch::kDouble, step) / 4;
  }
  static torch::Tensor loss(const torch::Tensor& output, const torch::Tensor&) {
    return output.square().mean() + output.mean();
  }
};

struct GptModel {
  using Holder = Gpt;
  static Holder make(const ParallelTrainingCase& c) { return filled(Gpt(8, c.hidden, 2)); }
  static mt::ParallelizePlan plan(const ParallelTrainingCase& c) {
    if (!c.splits_sequence) {
      return {{"layer*.norm[12]", mt::NoParallel()},
              {"layer*.attention.[qkv]", ColwiseParallel()},
              {"layer*.attention.out", RowwiseParallel()},
              {"layer*.mlp.up", ColwiseParallel()},
              {"layer*.mlp.down", RowwiseParallel()},
              {"norm", mt::NoParallel()},
              {"words", mt::NoParallel()},
              {"head", mt::NoParallel()}};
    }
    const mt::PrepareModuleInput split({.input_layouts = Replicate(), .desired_input_layouts = Shard(1)});
    const mt::PrepareModuleInput gather({.input_layouts = Shard(1), .desired_input_layouts = Replicate()});
    const RowwiseParallel back({.output_layouts = Shard(1), .use_local_output = false});
    const mt::PrepareModuleOutput whole({.output_layouts = Shard(1), .desired_output_layouts = Replicate()});
    return {{"layer*", split},
            {"layer*", whole},
            {"layer*.norm[12]", mt::SequenceParallel()},
            {"layer*.attention", gather},
            {"layer*.attention.[qkv]", ColwiseParallel()},
            {"layer*.attention.out", back},
            {"layer*.mlp", gather},
            {"layer*.mlp.up", ColwiseParallel()},
            {"layer*.mlp.down", back},
            {"norm", mt::NoParallel()},
            {"words", mt::NoParallel()},
            {"head", mt::NoParallel()}};
  }
  static torch::Tensor batch(int64_t rows, int64_t step) {
    return (numbers({rows, 4}, torch::kDouble, step) * 4 + 8).to(torch::kLong).remainder(kWords);
  }
  static torch::Tensor loss(const torch::Tensor& logits, const torch::Tensor& ids_BS) {
    return torch::cross_entropy_loss(logits.flatten(0, 1), ids_BS.roll(-1, 1).flatten());
  }
};

using Named = std::map<std::string, torch::Tensor>;

// Training on one device, done once for all ranks.
struct Alone {
  std::vector<double> losses;  // of each batch
  std::vector<double> norms;   // of the gradients of each step, if they are clipped
  std::map<int, Named> gradients;
  Named weights;
};

// Losses are compared in every step, gradients in these.
bool is_compared(int step) { return step % 6 == 1; }

template <class Holder>
Named copies(Holder& model, bool gradients) {
  Named all;
  for (const auto& p : model->named_parameters())
    all[p.key()] = (gradients ? p.value().grad() : p.value()).detach().clone();
  return all;
}

torch::Tensor in_type(const torch::Tensor& rows, torch::ScalarType type) {
  return rows.is_floating_point() ? rows.to(type) : rows;
}

// The gradients of one rank's rows as the policy has them: weights and activations in bfloat16.
template <class Model>
double low_gradients(typename Model::Holder& model, const ParallelTrainingCase& c, const torch::Tensor& rows,
                     Named& gradients) {
  typename Model::Holder low = Model::make(c);
  low->to(torch::kBFloat16);
  {
    const torch::NoGradGuard no_grad;
    const auto weights = model->named_parameters();
    for (const auto& p : low->named_parameters()) p.value().copy_(weights[p.key()]);
  }
  const torch::Tensor loss = Model::loss(low(in_type(rows, torch::kBFloat16)).to(c.type), rows);
  loss.backward();
  for (const auto& p : low->named_parameters()) {
    torch::Tensor& sum = gradients[p.key()];
    const torch::Tensor part = p.value().grad().to(c.type);
    sum = sum.defined() ? sum + part : part;
  }
  return loss.template item<double>();
}

// Adds the gradients of one batch, the mean over the rows of each rank, under the policy of the case: in the
// order in which the ranks add up, since another last digit may be another bfloat16.
template <class Model>
double add_gradients(typename Model::Holder& model, const ParallelTrainingCase& c,
                     const torch::Tensor& batch) {
  double mean = 0;
  const int copies = c.kind == Kind::hybrid ? 2 : 1;
  Named low_sums;
  for (int copy = 0; copy < copies; ++copy) {
    Named of_copy;
    for (int shard = 0; shard < c.data / copies; ++shard) {
      const torch::Tensor rows = rows_of(batch, c.data, copy * (c.data / copies) + shard);
      if (c.computes_in_bfloat16) {
        mean += low_gradients<Model>(model, c, rows, of_copy) / c.data;
        continue;
      }
      const torch::Tensor loss = Model::loss(model(in_type(rows, c.type)), rows) / c.data;
      mean += loss.template item<double>();
      loss.backward();
    }
    for (const auto& [name, gradient] : of_copy) {
      torch::Tensor& sum = low_sums[name];
      sum = sum.defined() ? sum + gradient : gradient;
    }
  }
  const auto weights = model->named_parameters();
  for (const auto& [name, sum] : low_sums) {
    torch::Tensor& gradient = weights[name].mutable_grad();
    gradient = gradient.defined() ? gradient + sum / c.data : sum / c.data;
  }
  return mean;
}

torch::optim::SGDOptions sgd_options() { return torch::optim::SGDOptions(0.05).momentum(0.9); }

template <class Model>
Alone train_alone(const ParallelTrainingCase& c) {
  auto model = Model::make(c);
  model->to(c.type);
  torch::optim::SGD sgd(model->parameters(), sgd_options());
  Alone alone;
  for (int step = 0; step < kSteps; ++step) {
    sgd.zero_grad();
    for (int micro = 0; micro < c.micro_batches; ++micro)
      alone.losses.push_back(
          add_gradients<Model>(model, c, Model::batch(2 * c.data, step * c.micro_batches + micro)));
    if (c.longest_gradient > 0)
      alone.norms.push_back(torch::nn::utils::clip_grad_norm_(model->parameters(), c.longest_gradient));
    if (is_compared(step)) alone.gradients[step] = copies(model, /*gradients=*/true);
    sgd.step();
  }
  alone.weights = copies(model, /*gradients=*/false);
  return alone;
}

template <class Holder>
void expect_named(Holder& model, const Named& expected, bool gradients, double tolerance) {
  for (const auto& p : model->named_parameters()) {
    const torch::Tensor mine = gradients ? p.value().grad() : p.value();
    ASSERT_TRUE(is_close(whole_of(mine), expected.at(p.key()), tolerance))
        << (gradients ? "gradient of " : "") << p.key();
  }
}

template <class Model>
void expect_trains_as(const Alone& alone, const ParallelTrainingCase& c) {
  const mt::DeviceMesh mesh = mesh_of(c);
  const mt::DeviceMesh data = data_axes(c, mesh);
  const mt::DeviceMesh flat = data.ndim() == 1 ? data : data.flatten();
  auto model = Model::make(c);
  model->to(c.type);
  if (c.tensor > 1) mt::parallelize_module(*model, mesh["tp"], Model::plan(c));
  make_parallel(model, c, data);
  torch::optim::SGD sgd(model->parameters(), sgd_options());
  for (int step = 0; step < kSteps; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    sgd.zero_grad();
    for (int micro = 0; micro < c.micro_batches; ++micro) {
      const int number = step * c.micro_batches + micro;
      const torch::Tensor rows = rows_of(Model::batch(2 * c.data, number), c.data, flat.get_local_rank());
      std::optional<mt::NoSync> no_sync;
      if (micro + 1 < c.micro_batches && step % 2 == 0) no_sync.emplace(*model);
      const torch::Tensor loss = Model::loss(model(in_type(rows, c.type)), rows);
      loss.backward();
      ASSERT_NEAR(mt::all_reduce(whole_of(loss), "avg", flat).template item<double>(),
                  alone.losses[static_cast<std::size_t>(number)], c.tolerance());
    }
    if (c.longest_gradient > 0) {
      const double norm = alone.norms[static_cast<std::size_t>(step)];
      ASSERT_NEAR(torch::nn::utils::clip_grad_norm_(model->parameters(), c.longest_gradient), norm,
                  c.tolerance() * std::max(1.0, norm));
    }
    if (is_compared(step)) expect_named(model, alone.gradients.at(step), /*gradients=*/true, c.tolerance());
    sgd.step();
  }
  expect_named(model, alone.weights, /*gradients=*/false, c.tolerance());
}

class DataParallelTable : public ::testing::TestWithParam<ParallelTrainingCase> {
 protected:
  template <class Model>
  void run() {
    const ParallelTrainingCase c = GetParam();
    if (ranks_are_processes() && c.ranks() > 4) GTEST_SKIP() << "needs " << c.ranks() << " ranks";
    const Alone alone = train_alone<Model>(c);
    on_ranks(c.ranks(), [&](int) { expect_trains_as<Model>(alone, c); });
  }
};

TEST_P(DataParallelTable, MlpTrainsAsOneDevice) {
  if (GetParam().splits_sequence) GTEST_SKIP() << "it has no sequence";
  run<TowerModel>();
}

TEST_P(DataParallelTable, GptTrainsAsOneDevice) { run<GptModel>(); }

const std::vector<ParallelTrainingCase> kTable{
    {.name = "Replicate2", .kind = Kind::replicate, .data = 2, .micro_batches = 2, .longest_gradient = 0.3},
    {.name = "Replicate3Float", .kind = Kind::replicate, .data = 3, .type = torch::kFloat},
    {.name = "Replicate2Tp2", .kind = Kind::replicate, .data = 2, .tensor = 2, .longest_gradient = 0.3},
    {.name = "Replicate2Tp2Sequence",
     .kind = Kind::replicate,
     .data = 2,
     .tensor = 2,
     .splits_sequence = true},
    {.name = "Replicate2BFloat16",
     .kind = Kind::replicate,
     .data = 2,
     .type = torch::kFloat,
     .computes_in_bfloat16 = true},
    {.name = "Shard2Float", .kind = Kind::shard, .data = 2, .type = torch::kFloat, .longest_gradient = 0.3},
    {.name = "Shard4Uneven",
     .kind = Kind::shard,
     .data = 4,
     .hidden = 5,
     .micro_batches = 2,
     .longest_gradient = 0.3},
    {.name = "Shard8Uneven", .kind = Kind::shard, .data = 8, .hidden = 5},
    {.name = "Shard2Tp2", .kind = Kind::shard, .data = 2, .tensor = 2, .longest_gradient = 0.3},
    {.name = "Shard2Tp2Sequence", .kind = Kind::shard, .data = 2, .tensor = 2, .splits_sequence = true},
    {.name = "Shard4Tp2", .kind = Kind::shard, .data = 4, .tensor = 2, .micro_batches = 2},
    {.name = "Shard2BFloat16",
     .kind = Kind::shard,
     .data = 2,
     .type = torch::kFloat,
     .computes_in_bfloat16 = true},
    {.name = "Hybrid4", .kind = Kind::hybrid, .data = 4, .hidden = 5, .micro_batches = 2},
    {.name = "Hybrid4Float", .kind = Kind::hybrid, .data = 4, .type = torch::kFloat, .longest_gradient = 0.3},
    {.name = "Hybrid4Tp2Sequence", .kind = Kind::hybrid, .data = 4, .tensor = 2, .splits_sequence = true},
    {.name = "Hybrid4BFloat16",
     .kind = Kind::hybrid,
     .data = 4,
     .type = torch::kFloat,
     .computes_in_bfloat16 = true}};

INSTANTIATE_TEST_SUITE_P(, DataParallelTable, ::testing::ValuesIn(kTable),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace meshtorch::testing

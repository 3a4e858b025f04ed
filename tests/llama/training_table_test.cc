// Twenty steps of training a Llama, one table: every kind of data parallelism, alone and with tensor and
// sequence parallelism, beside one device.
#include <meshtorch/data_parallel.h>
#include <meshtorch/fully_shard.h>
#include <meshtorch/replicate.h>

#include "tiny_model.h"

namespace meshtorch::testing {
namespace {

constexpr int kLlamaSteps = 20;

struct LlamaRow {
  std::string name;
  llama::MeshShape mesh;
  bool copies = false;  // replicate(…) over dp
  bool splits_sequence = false;
  torch::ScalarType type = torch::kDouble;
  std::int64_t vocab = 24;
  int micro_batches = 1;
  double longest_gradient = 0;  // clipped if longer

  double tolerance() const { return type == torch::kDouble ? 1e-9 : 1e-5; }
  llama::Config config() const { return tiny_config(4, 2, vocab); }
};

torch::Tensor next_token_loss(llama::Llama& model, const torch::Tensor& ids_BS,
                              const torch::Tensor& targets_BS) {
  return torch::nn::functional::cross_entropy(model(ids_BS).flatten(0, 1), targets_BS.flatten(0, 1));
}

void make_parallel(llama::Llama model, const mt::DeviceMesh& mesh, const LlamaRow& row) {
  if (!row.copies) return llama::parallelize(model, mesh, {.sequence_parallel = row.splits_sequence});
  mt::parallelize_module(
      *model, mesh["tp"],
      llama::plan_of(model->config, row.mesh.tp, {.sequence_parallel = row.splits_sequence}));
  mt::replicate(*model, mesh["dp"], {.bucket_bytes = 4000, .first_bucket_bytes = 900});
}

// One model beside another, step by step: losses in each, gradients in some, weights at the end.
void expect_trains_alike_for_long(llama::Llama plain, llama::Llama parallel, const mt::DeviceMesh& mesh,
                                  const LlamaRow& row) {
  const torch::optim::SGDOptions options = torch::optim::SGDOptions(0.05).momentum(0.9);
  torch::optim::SGD plain_sgd(plain->parameters(), options);
  torch::optim::SGD parallel_sgd(parallel->parameters(), options);
  const auto expected = plain->named_parameters();
  for (int step = 0; step < kLlamaSteps; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    plain_sgd.zero_grad();
    parallel_sgd.zero_grad();
    for (int micro = 0; micro < row.micro_batches; ++micro) {
      const int number = step * row.micro_batches + micro;
      const torch::Tensor ids_BS = tokens(2 * row.mesh.data(), 6, plain->config, number);
      const torch::Tensor targets_BS = tokens(2 * row.mesh.data(), 6, plain->config, number + 100);
      const torch::Tensor plain_loss = next_token_loss(plain, ids_BS, targets_BS);
      plain_loss.backward();
      std::optional<mt::NoSync> no_sync;
      if (micro + 1 < row.micro_batches && step % 2 == 0) no_sync.emplace(*parallel);
      const mt::loss_parallel scope;
      const torch::Tensor loss = next_token_loss(parallel, llama::distribute_batch(ids_BS, mesh),
                                                 llama::distribute_batch(targets_BS, mesh));
      loss.backward();
      ASSERT_NEAR(whole(loss).item<double>(), plain_loss.item<double>(), row.tolerance());
    }
    if (row.longest_gradient > 0) {
      const double norm = torch::nn::utils::clip_grad_norm_(plain->parameters(), row.longest_gradient);
      ASSERT_NEAR(torch::nn::utils::clip_grad_norm_(parallel->parameters(), row.longest_gradient), norm,
                  row.tolerance() * std::max(1.0, norm));
    }
    for (const auto& p : parallel->named_parameters()) {
      if (step % 6 != 1) break;
      ASSERT_TRUE(is_close(whole(p.value().grad()), expected[p.key()].grad(), row.tolerance())) << p.key();
    }
    plain_sgd.step();
    parallel_sgd.step();
  }
  for (const auto& p : parallel->named_parameters())
    ASSERT_TRUE(is_close(whole(p.value()), expected[p.key()].detach(), row.tolerance())) << p.key();
}

class LlamaTable : public ::testing::TestWithParam<LlamaRow> {};

TEST_P(LlamaTable, TrainsAsOneDevice) {
  const LlamaRow row = GetParam();
  on_mesh(row.mesh, [&](const mt::DeviceMesh& mesh) {
    llama::Llama parallel = filled_model(row.config(), row.type);
    make_parallel(parallel, mesh, row);
    expect_trains_alike_for_long(filled_model(row.config(), row.type), parallel, mesh, row);
  });
}

const std::vector<LlamaRow> kLlamaTable{
    {.name = "Replicate2", .mesh = {.dp = 2}, .copies = true, .micro_batches = 2, .longest_gradient = 0.3},
    {.name = "Replicate3Float", .mesh = {.dp = 3}, .copies = true, .type = torch::kFloat},
    {.name = "Replicate2Tp2", .mesh = {.dp = 2, .tp = 2}, .copies = true, .longest_gradient = 0.3},
    {.name = "Replicate2Tp2Sequence", .mesh = {.dp = 2, .tp = 2}, .copies = true, .splits_sequence = true},
    {.name = "Shard2Float", .mesh = {.dp_shard = 2}, .type = torch::kFloat, .longest_gradient = 0.3},
    {.name = "Shard3Uneven",
     .mesh = {.dp_shard = 3},
     .vocab = 25,
     .micro_batches = 2,
     .longest_gradient = 0.3},
    {.name = "Shard8Uneven", .mesh = {.dp_shard = 8}, .vocab = 25},
    {.name = "Shard2Tp2", .mesh = {.tp = 2, .dp_shard = 2}, .micro_batches = 2, .longest_gradient = 0.3},
    {.name = "Shard2Tp2Sequence",
     .mesh = {.tp = 2, .dp_shard = 2},
     .splits_sequence = true,
     .longest_gradient = 0.3},
    {.name = "Shard4Tp2Sequence", .mesh = {.tp = 2, .dp_shard = 4}, .splits_sequence = true},
    {.name = "Hybrid4", .mesh = {.dp_shard = 2, .dp_replicate = 2}, .vocab = 25, .micro_batches = 2},
    {.name = "Hybrid4Float",
     .mesh = {.dp_shard = 2, .dp_replicate = 2},
     .type = torch::kFloat,
     .longest_gradient = 0.3},
    {.name = "Hybrid4Tp2", .mesh = {.tp = 2, .dp_shard = 2, .dp_replicate = 2}},
    {.name = "Hybrid4Tp2Sequence",
     .mesh = {.tp = 2, .dp_shard = 2, .dp_replicate = 2},
     .splits_sequence = true,
     .longest_gradient = 0.3}};

INSTANTIATE_TEST_SUITE_P(, LlamaTable, ::testing::ValuesIn(kLlamaTable),
                         [](const auto& each) { return each.param.name; });

// Training under a policy: weights and activations in bfloat16, gradients added up in float, as one device
// does it with the rows of each rank in turn.
struct PolicyRow {
  std::string name;
  int copies, shards;
  bool is_sharded() const { return shards > 1; }
  int ranks() const { return copies * shards; }
};

torch::Tensor rows_of_rank(const torch::Tensor& batch_BS, int rank) {
  return batch_BS.narrow(0, 2 * rank, 2);
}

torch::Tensor policy_loss(llama::Llama& model, const torch::Tensor& ids_BS, const torch::Tensor& targets_BS) {
  return torch::nn::functional::cross_entropy(model(ids_BS).to(torch::kFloat).flatten(0, 1),
                                              targets_BS.flatten(0, 1));
}

// The mean loss; the gradients are those of the policy, added up in the order in which ranks do it.
double gradients_under_policy(llama::Llama& plain, const PolicyRow& row, const torch::Tensor& ids_BS,
                              const torch::Tensor& targets_BS) {
  std::vector<torch::Tensor> sums;
  double mean = 0;
  for (int copy = 0; copy < row.copies; ++copy) {
    std::vector<torch::Tensor> of_copy;
    for (int shard = 0; shard < row.shards; ++shard) {
      const int rank = copy * row.shards + shard;
      llama::Llama low = filled_model(plain->config, torch::kFloat);
      const std::vector<torch::Tensor> weights = plain->parameters();
      std::vector<torch::Tensor> low_weights = low->parameters();
      for (std::size_t i = 0; i < weights.size(); ++i)
        low_weights[i].set_data(weights[i].detach().to(torch::kBFloat16));
      const torch::Tensor loss = policy_loss(low, rows_of_rank(ids_BS, rank), rows_of_rank(targets_BS, rank));
      loss.backward();
      mean += loss.item<double>() / row.ranks();
      std::vector<torch::Tensor> gradients;
      for (const torch::Tensor& weight : low_weights) gradients.push_back(weight.grad().to(torch::kFloat));
      of_copy = of_copy.empty() ? gradients : torch::_foreach_add(of_copy, gradients);
    }
    sums = sums.empty() ? of_copy : torch::_foreach_add(sums, of_copy);
  }
  std::vector<torch::Tensor> weights = plain->parameters();
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i].mutable_grad() = sums[i] / row.ranks();
  return mean;
}

void make_parallel(llama::Llama model, const mt::DeviceMesh& mesh, const PolicyRow& row) {
  mt::MixedPrecisionPolicy policy{
      .param_dtype = torch::kBFloat16, .reduce_dtype = torch::kFloat, .output_dtype = torch::kFloat};
  if (!row.is_sharded()) {
    mt::replicate(*model, mesh["copies"],
                  {.bucket_bytes = 4000, .first_bucket_bytes = 900, .mp_policy = policy});
    return;
  }
  mt::MixedPrecisionPolicy inside = policy;
  inside.output_dtype = std::nullopt;
  const mt::DeviceMesh data = row.copies > 1 ? mesh : mesh["shards"];
  for (llama::DecoderLayer& layer : model->model->layers)
    mt::fully_shard(*layer, data, {.mp_policy = inside});
  mt::fully_shard(*model, data, {.mp_policy = policy});
}

class LlamaPolicy : public ::testing::TestWithParam<PolicyRow> {};

TEST_P(LlamaPolicy, TrainsAsOneDeviceUnderTheSame) {
  const PolicyRow row = GetParam();
  on_ranks(row.ranks(), [&](int rank) {
    const mt::DeviceMesh mesh =
        mt::init_device_mesh(torch::kCPU, {row.copies, row.shards}, {"copies", "shards"});
    const llama::Config config = tiny_config(4, 2);
    llama::Llama plain = filled_model(config, torch::kFloat);
    llama::Llama parallel = filled_model(config, torch::kFloat);
    make_parallel(parallel, mesh, row);
    torch::optim::SGD plain_sgd(plain->parameters(), 0.05);
    torch::optim::SGD parallel_sgd(parallel->parameters(), 0.05);
    for (int step = 0; step < kLlamaSteps; ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      const torch::Tensor ids_BS = tokens(2 * row.ranks(), 6, config, step);
      const torch::Tensor targets_BS = tokens(2 * row.ranks(), 6, config, step + 100);
      const double expected = gradients_under_policy(plain, row, ids_BS, targets_BS);
      parallel_sgd.zero_grad();
      const torch::Tensor loss =
          policy_loss(parallel, rows_of_rank(ids_BS, rank), rows_of_rank(targets_BS, rank));
      loss.backward();
      ASSERT_NEAR(mt::all_reduce(loss.detach(), "avg", {}).item<double>(), expected, 1e-5);
      const auto named = plain->named_parameters();
      for (const auto& p : parallel->named_parameters())
        ASSERT_TRUE(is_close(whole(p.value().grad()), named[p.key()].grad(), 1e-5)) << p.key();
      plain_sgd.step();
      parallel_sgd.step();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(, LlamaPolicy,
                         ::testing::Values(PolicyRow{"Replicate2", 2, 1}, PolicyRow{"Replicate3", 3, 1},
                                           PolicyRow{"Shard2", 1, 2}, PolicyRow{"Shard4", 1, 4},
                                           PolicyRow{"Hybrid4", 2, 2}),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace meshtorch::testing

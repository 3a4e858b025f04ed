// A Llama whose sequence is split over one axis of the mesh, and heads over the other, equals one device.
#include <meshtorch/context_parallel.h>

#include "tiny_model.h"

namespace meshtorch::testing {
namespace {

namespace F = torch::nn::functional;

mt::DTensor along_sequence(const torch::Tensor& batch_BS, const mt::DeviceMesh& mesh) {
  return mt::distribute_tensor(batch_BS, mesh, {mt::Shard(1), mt::Replicate()},
                               {.src_data_rank = std::nullopt});
}

torch::Tensor sequence_loss(llama::Llama model, const torch::Tensor& ids_BS,
                            const torch::Tensor& targets_BS) {
  return F::cross_entropy(model(ids_BS).flatten(0, 1), targets_BS.flatten(0, 1));
}

// The rows of the mesh hold the sequence.
void expect_same_step(int rows, int tp, int64_t length, bool sequence_parallel, mt::RotateMethod method) {
  on_mesh(rows, tp, [&](const mt::DeviceMesh& mesh) {
    mt::set_rotate_method(method);
    const llama::Config config = tiny_config(4, 2);
    llama::Llama plain = filled_model(config);
    llama::Llama parallel = filled_model(config);
    llama::parallelize(parallel, mesh, {.sequence_parallel = sequence_parallel});
    const torch::Tensor ids_BS = tokens(2, length, config);
    const torch::Tensor targets_BS = tokens(2, length, config, 100);
    const torch::Tensor plain_loss = sequence_loss(plain, ids_BS, targets_BS);
    plain_loss.backward();
    const torch::Tensor loss =
        sequence_loss(parallel, along_sequence(ids_BS, mesh), along_sequence(targets_BS, mesh));
    loss.backward();
    mt::reduce_gradients(parallel->parameters());
    EXPECT_NEAR(plain_loss.item<double>(), whole(loss).item<double>(), 1e-10);
    const auto expected = plain->named_parameters();
    for (const auto& p : parallel->named_parameters()) {
      EXPECT_TRUE(is_close(whole(p.value().grad()), expected[p.key()].grad(), 1e-9)) << p.key();
    }
    mt::set_rotate_method(mt::RotateMethod::automatic);
  });
}

TEST(LlamaLongSequence, EqualsOneDevice) {
  expect_same_step(2, 1, 12, false, mt::RotateMethod::allgather);
  expect_same_step(3, 1, 11, false, mt::RotateMethod::ring);
  expect_same_step(2, 2, 12, false, mt::RotateMethod::ring);
  expect_same_step(2, 2, 12, true, mt::RotateMethod::allgather);
  expect_same_step(4, 1, 12, false, mt::RotateMethod::automatic);
}

}  // namespace
}  // namespace meshtorch::testing

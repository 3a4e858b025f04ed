// What explain says of an operator: rule, options with their costs, choice.
#include "../dist/numbers.h"

namespace meshtorch::testing {
namespace {

using torch::Tensor;

TEST(Explain, ShowsTheOptionsOfEachAxisAndTheChoice) {
  on_ranks(4, [](int rank) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    const Tensor a = mt::distribute_tensor(numbers({8, 4}), mesh, {mt::Shard(0), mt::Replicate()});
    const Tensor b = mt::distribute_tensor(numbers({4, 6}), mesh, {mt::Replicate(), mt::Shard(0)});
    const mt::CommDebugMode comm;
    const std::string text = mt::explain("mm", a, b);
    EXPECT_EQ(comm.get_total_counts(), 0);
    if (rank != 0) return;
    EXPECT_EQ(text, R"(mm on DeviceMesh((dp=2, tp=2), [[0, 1], [2, 3]], cpu)
  self [8, 4] Float [S(0), R]
  mat2 [4, 6] Float [R, S(0)]
rule   *m k, *k n -> m n
axis 0, 2 ranks
    R R -> R: replicate                        moves data  10.01 us
  > S(0) R -> S(0): split m                                0.00 us
    S(1) S(0) -> P(sum): split k (contracted)  moves data  30.03 us
    R S(1) -> S(1): split n                    moves data  20.01 us
    P(sum) R -> P(sum): linear                 moves data  20.03 us
    R P(sum) -> P(sum): linear                 moves data  20.03 us
    P(avg) R -> P(avg): linear                 moves data  20.03 us
    R P(avg) -> P(avg): linear                 moves data  20.03 us
axis 1, 2 ranks
    R R -> R: replicate                        moves data  10.00 us
    S(0) R -> S(0): split m                    moves data  15.01 us
  > S(1) S(0) -> P(sum): split k (contracted)              10.01 us
    R S(1) -> S(1): split n                    moves data  15.00 us
    P(sum) R -> P(sum): linear                 moves data  20.02 us
    R P(sum) -> P(sum): linear                 moves data  20.02 us
    P(avg) R -> P(avg): linear                 moves data  20.02 us
    R P(avg) -> P(avg): linear                 moves data  20.02 us
choice
  self [S(0), R] -> [S(0), S(1)]
  result 0 [S(0), P(sum)]
)");
  });
}

TEST(Explain, SaysWhenAnOperatorRunsOnWholeTensors) {
  on_ranks(2, [](int) {
    const Tensor a = mt::distribute_tensor(numbers({4, 4}), line(2), {mt::Shard(0)});
    const Tensor line_of_four = mt::distribute_tensor(numbers({4}), line(2), {mt::Shard(0)});
    EXPECT_EQ(mt::explain("nonzero", a), R"(nonzero on DeviceMesh((tp=2), [0, 1], cpu)
  self [4, 4] Float [S(0)]
choice
  every tensor whole on every rank: it has no rule
)");
    EXPECT_EQ(mt::explain("linear", a, a), R"(linear on DeviceMesh((tp=2), [0, 1], cpu)
  input [4, 4] Float [S(0)]
  weight [4, 4] Float [S(0)]
composite: LibTorch decomposes it; explain the operators that it calls
)");
    EXPECT_EQ(mt::explain("mm", a, line_of_four), R"(mm on DeviceMesh((tp=2), [0, 1], cpu)
  self [4, 4] Float [S(0)]
  mat2 [4] Float [S(0)]
rule   *m k, *k n -> m n
choice
  every tensor whole on every rank: the rule does not fit the shapes
)");
  });
}

TEST(Explain, SettlesTheElementsOfListsOneByOne) {
  on_ranks(2, [](int) {
    const Tensor a = mt::distribute_tensor(numbers({4, 4}), line(2), {mt::Shard(0)});
    const Tensor b = mt::distribute_tensor(numbers({4}), line(2), {mt::Replicate()});
    EXPECT_EQ(mt::explain("_foreach_neg", std::vector<Tensor>{a, b}),
              R"(_foreach_neg on DeviceMesh((tp=2), [0, 1], cpu)
  self[0] [4, 4] Float [S(0)]
  self[1] [4] Float [R]
rule   *...[] -> ...[]
axis 0, 2 ranks, element 0 of the lists
    R -> R: replicate            moves data  10.00 us
  > S(0) -> S(0): split ...[-2]              0.00 us
    S(1) -> S(1): split ...[-1]  moves data  20.00 us
    P(sum) -> P(sum): linear     moves data  20.01 us
    P(avg) -> P(avg): linear     moves data  20.01 us
axis 0, 2 ranks, element 1 of the lists
  > R -> R: replicate                        0.00 us
    S(0) -> S(0): split ...[-1]              0.00 us
    P(sum) -> P(sum): linear                 10.00 us
    P(avg) -> P(avg): linear                 10.00 us
choice
  result 0 [S(0)]
  result 1 [R]
)");
  });
}

TEST(Explain, NeedsADistributedTensor) {
  EXPECT_EQ(
      error_of([] { mt::explain("neg", numbers({2})); }),
      "meshtorch: explain of `neg` got no distributed tensor\n  call   self (2) Float\n  do: give it the "
      "tensors that the operator is called with");
  EXPECT_EQ(
      error_of([] { mt::explain("neg", numbers({2}), 1, 2); }),
      "meshtorch: 3 arguments for `neg`, which takes 1\n  schema aten::neg(Tensor self) -> Tensor\n  do: "
      "give its arguments in schema order");
}

}  // namespace
}  // namespace meshtorch::testing

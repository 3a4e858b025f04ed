// What explain says of an operator: rule, options with their costs, choice.
#include "numbers.h"

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
    EXPECT_EQ(text, "");
  });
}

TEST(Explain, SaysWhenAnOperatorRunsOnWholeTensors) {
  on_ranks(2, [](int) {
    const Tensor a = mt::distribute_tensor(numbers({4, 4}), line(2), {mt::Shard(0)});
    EXPECT_EQ(mt::explain("linalg_inv_ex", a), "");
    EXPECT_EQ(mt::explain("linear", a, a), "");
    EXPECT_EQ(mt::explain("mm", a, mt::distribute_tensor(numbers({4}), line(2), {mt::Shard(0)})), "");
  });
}

TEST(Explain, SettlesTheElementsOfListsOneByOne) {
  on_ranks(2, [](int) {
    const Tensor a = mt::distribute_tensor(numbers({4, 4}), line(2), {mt::Shard(0)});
    const Tensor b = mt::distribute_tensor(numbers({4}), line(2), {mt::Replicate()});
    EXPECT_EQ(mt::explain("_foreach_neg", std::vector<Tensor>{a, b}), "");
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

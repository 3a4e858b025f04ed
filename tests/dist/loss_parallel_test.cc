// Cross entropy on logits that are split by class.
#include "numbers.h"

namespace meshtorch::testing {
namespace {

namespace F = torch::nn::functional;
using mt::Collective;
using mt::DTensor;
using mt::Replicate;
using mt::Shard;

struct LossCase {
  std::string name;
  std::vector<int64_t> shape;
  bool has_weight = false;
  int64_t ignore_index = -100;
  double label_smoothing = 0;
};

F::CrossEntropyFuncOptions options_of(const LossCase& c, int reduction) {
  F::CrossEntropyFuncOptions options;
  options.ignore_index(c.ignore_index).label_smoothing(c.label_smoothing);
  if (c.has_weight)
    options.weight(numbers({c.shape.size() > 1 ? c.shape[1] : c.shape[0]}, torch::kDouble, 2).abs() + 0.5);
  if (reduction == 0) options.reduction(torch::kNone);
  if (reduction == 1) options.reduction(torch::kMean);
  if (reduction == 2) options.reduction(torch::kSum);
  return options;
}

torch::Tensor targets_of(const LossCase& c) {
  if (c.shape.size() == 1) return torch::tensor(1, torch::kLong);
  std::vector<int64_t> shape = c.shape;
  shape.erase(shape.begin() + 1);
  return (torch::arange(c10::multiply_integers(shape)) * 3 + 1).remainder(c.shape[1]).view(shape);
}

void expect_equal_to_one_device(const LossCase& c, const mt::DeviceMesh& mesh,
                                const mt::Placements& placements, int reduction) {
  SCOPED_TRACE(c.name + ", reduction " + std::to_string(reduction) + ", " + mt::to_string(placements));
  const torch::Tensor plain = numbers(c.shape, torch::kDouble).requires_grad_();
  const torch::Tensor target = targets_of(c);
  const torch::Tensor expected = F::cross_entropy(plain, target, options_of(c, reduction));
  (expected * expected).sum().backward();
  const DTensor logits =
      mt::distribute_tensor(numbers(c.shape, torch::kDouble).requires_grad_(), mesh, placements);
  const mt::implicit_replication weights_are_equal_on_all_ranks;
  torch::Tensor loss;
  {
    const mt::loss_parallel scope;
    loss = F::cross_entropy(logits, target, options_of(c, reduction));
  }
  EXPECT_TRUE(is_close(DTensor(loss).full_tensor(), expected, 1e-12));
  (loss * loss).sum().backward();
  EXPECT_TRUE(is_close(DTensor(logits.grad()).full_tensor(), plain.grad(), 1e-12));
  EXPECT_EQ(DTensor(logits.grad()).placements(), placements);
}

class LossParallel : public ::testing::TestWithParam<LossCase> {};

TEST_P(LossParallel, EqualsOneDevice) {
  for (const int ranks : {2, 4}) {
    on_ranks(ranks, [&](int) {
      const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {ranks}, {"tp"});
      const int64_t class_dim = GetParam().shape.size() > 1 ? 1 : 0;
      for (int reduction = 0; reduction < 3; ++reduction)
        expect_equal_to_one_device(GetParam(), mesh, {Shard(class_dim)}, reduction);
    });
  }
}

TEST_P(LossParallel, EqualsOneDeviceWithSplitSamples) {
  if (GetParam().shape.size() == 1) return;
  on_ranks(4, [&](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    for (int reduction = 0; reduction < 3; ++reduction)
      expect_equal_to_one_device(GetParam(), mesh, {Shard(0), Shard(1)}, reduction);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Cases, LossParallel,
    ::testing::Values(LossCase{"Batch", {6, 8}}, LossCase{"UnevenClasses", {6, 7}},
                      LossCase{"FewerClassesThanRanks", {6, 3}}, LossCase{"Weighted", {6, 8}, true},
                      LossCase{"Ignored", {6, 8}, false, 4}, LossCase{"WeightedIgnored", {6, 7}, true, 4},
                      LossCase{"Space", {4, 8, 3, 2}, true, 4}, LossCase{"OneSpaceDim", {4, 8, 3}},
                      LossCase{"OneSample", {8}}, LossCase{"Smoothed", {6, 8}, false, -100, 0.1}),
    [](const auto& tested) { return tested.param.name; });

// A batch of padding: the mean is over nothing, and yet no gradient may come of it.
TEST(LossParallelScope, GivesNoGradientWhereEveryTargetIsIgnored) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    for (const LossCase& c :
         {LossCase{"Batch", {6, 7}, false, 3}, LossCase{"Weighted", {6, 7}, true, 3},
          LossCase{"Space", {4, 8, 3}, false, 3}, LossCase{"Smoothed", {6, 7}, false, 3, 0.1}}) {
      std::vector<int64_t> shape = c.shape;
      shape.erase(shape.begin() + 1);
      const torch::Tensor target = torch::full(shape, 3, torch::kLong);
      for (int reduction = 0; reduction < 3; ++reduction) {
        const torch::Tensor plain = numbers(c.shape, torch::kDouble).requires_grad_();
        F::cross_entropy(plain, target, options_of(c, reduction)).sum().backward();
        const DTensor logits = mt::distribute_tensor(numbers(c.shape, torch::kDouble).requires_grad_(), mesh,
                                                     {Shard(0), Shard(1)});
        const mt::implicit_replication weights_are_equal_on_all_ranks;
        const mt::loss_parallel scope;
        F::cross_entropy(logits, target, options_of(c, reduction)).sum().backward();
        EXPECT_TRUE(is_equal(DTensor(logits.grad()).full_tensor(), plain.grad()))
            << c.name << ", reduction " << reduction;
      }
    }
  });
}

TEST(LossParallelScope, CommunicatesThreeSmallTensorsForwardAndNoneBackward) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {4}, {"tp"});
    const DTensor logits =
        mt::distribute_tensor(numbers({16, 64}, torch::kDouble).requires_grad_(), mesh, {Shard(1)});
    const torch::Tensor target = torch::arange(16);
    const mt::loss_parallel scope;
    mt::CommDebugMode comm;
    const torch::Tensor loss = F::cross_entropy(logits, target);
    EXPECT_EQ(comm.get_comm_counts()[Collective::all_reduce], 3) << comm.table();
    EXPECT_EQ(comm.get_total_counts(), 3) << comm.table();
    EXPECT_EQ(comm.get_comm_counts().statistics().at(Collective::all_reduce).bytes_sent,
              3 * 2 * 16 * 8 * 3 / 4);
    comm.restart();
    loss.backward();
    EXPECT_EQ(comm.get_total_counts(), 0) << comm.table();
  });
}

// The sum of a gradient is kept for the next node of backward; between the two a hook may write to it, on
// some ranks.
TEST(LossParallelScope, AHookMayWriteToTheGradientInBetween) {
  on_ranks(3, [](int rank) {
    const torch::Tensor target = torch::tensor({0, 6, 3, 6});
    const mt::loss_parallel scope;
    for (const bool is_unseen : {false, true}) {
      for (const std::set<int>& writers : {std::set<int>{}, {0}, {2}, {0, 1}, {0, 1, 2}}) {
        const torch::Tensor plain = numbers({4, 7}, torch::kDouble).requires_grad_();
        const torch::Tensor of_plain = torch::log_softmax(plain, 1);
        of_plain.register_hook([&](const torch::Tensor& g) {
          for (const int writer : writers)
            torch::Tensor(g).tensor_split(torch::IntArrayRef{3, 6}, 1)[writer].mul_(3);
        });
        F::nll_loss(of_plain, target).backward();
        const DTensor logits =
            mt::distribute_tensor(numbers({4, 7}, torch::kDouble).requires_grad_(), line(3), {Shard(1)});
        const torch::Tensor of_logits = torch::log_softmax(logits, 1);
        of_logits.register_hook([&](const torch::Tensor& g) {
          if (!writers.contains(rank)) return;
          const torch::Tensor local = DTensor(g).to_local();
          is_unseen ? local.data().mul_(3) : local.mul_(3);
        });
        F::nll_loss(of_logits, target).backward();
        EXPECT_TRUE(is_close(DTensor(logits.grad()).full_tensor(), plain.grad(), 1e-12))
            << writers.size() << " ranks write, unseen: " << is_unseen;
      }
    }
  });
}

// Ranks of a smaller mesh have kept a sum that nobody has asked for; the others have not.
TEST(LossParallelScope, ASumOfAnotherMeshIsLeftAlone) {
  on_ranks(3, [](int) {
    const mt::loss_parallel scope;
    const mt::DeviceMesh pair(torch::kCPU, std::vector<int64_t>{0, 1});
    const DTensor chances =
        mt::distribute_tensor(numbers({4, 6}, torch::kDouble).requires_grad_(), pair, {Shard(1)});
    F::nll_loss(chances, torch::tensor({0, 5, 3, 1})).backward();
    const torch::Tensor plain = numbers({4, 6}, torch::kDouble).requires_grad_();
    torch::log_softmax(plain, 1).square().sum().backward();
    const DTensor logits =
        mt::distribute_tensor(numbers({4, 6}, torch::kDouble).requires_grad_(), line(3), {Shard(1)});
    torch::log_softmax(logits, 1).square().sum().backward();
    EXPECT_TRUE(is_close(DTensor(logits.grad()).full_tensor(), plain.grad(), 1e-12));
  });
}

TEST(LossParallelScope, RefusesTargetsThatAreNoClass) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2}, {"tp"});
    const DTensor logits = mt::distribute_tensor(numbers({2, 4}, torch::kDouble), mesh, {Shard(1)});
    const mt::loss_parallel scope;
    EXPECT_NE(
        error_of([&] { F::cross_entropy(logits, torch::tensor({1, 4})); }).find("a target is out of bounds"),
        std::string::npos);
  });
}

TEST(LossParallelScope, AllRanksGoOneWayWhereClassesAreHeldInSeveralRuns) {
  on_ranks(2, [](int) {
    const torch::Tensor plain = numbers({4, 3}, torch::kDouble).requires_grad_();
    const torch::Tensor target = torch::tensor({0, 1, 2, 0});
    F::cross_entropy(plain, target).backward();
    // Rank 0 holds classes 0 and 2, rank 1 one run.
    const DTensor logits = mt::distribute_tensor(numbers({4, 3}, torch::kDouble).requires_grad_(), line(2),
                                                 {mt::StridedShard(1, 2)});
    const mt::loss_parallel scope;
    F::cross_entropy(logits, target).backward();
    EXPECT_TRUE(is_close(DTensor(logits.grad()).full_tensor(), plain.grad(), 1e-12));
  });
}

TEST(LossParallelScope, LogProbabilitiesMayBeOfAnotherDimThanTheClasses) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    const torch::Tensor plain = numbers({2, 4, 4, 6}, torch::kDouble).requires_grad_();
    const torch::Tensor target = torch::arange(2 * 4 * 6).remainder(4).view({2, 4, 6});
    F::nll_loss(torch::log_softmax(plain, 3), target).backward();
    const DTensor logits = mt::distribute_tensor(numbers({2, 4, 4, 6}, torch::kDouble).requires_grad_(), mesh,
                                                 {Shard(1), Shard(3)});
    const mt::loss_parallel scope;
    F::nll_loss(torch::log_softmax(logits, 3), target).backward();
    EXPECT_TRUE(is_close(DTensor(logits.grad()).full_tensor(), plain.grad(), 1e-12));
  });
}

}  // namespace
}  // namespace meshtorch::testing

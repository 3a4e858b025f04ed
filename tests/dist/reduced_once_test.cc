// A pending tensor that several operators read is reduced once, and again only after it was written.
#include "transformer_block.h"

namespace meshtorch::testing {
namespace {

using mt::DTensor;
using mt::Partial;
using mt::Replicate;
using mt::Shard;

// Each rank's terms add up to 0 + 1 + … of `numbers`.
DTensor pending(const mt::DeviceMesh& mesh, int rank) {
  return DTensor::from_local(numbers({4, 3}) * static_cast<float>(rank + 1), mesh, {Partial()});
}

torch::Tensor sum_of_terms(int ranks) {
  return numbers({4, 3}) * static_cast<float>(ranks * (ranks + 1) / 2);
}

// Collectives of reading the tensor once more.
int64_t cost_of_reading(const torch::Tensor& x, const torch::Tensor& expected) {
  const mt::CommDebugMode comm;
  const torch::Tensor y = torch::relu(x);
  const int64_t count = comm.get_total_counts();
  EXPECT_TRUE(is_equal(DTensor(y).full_tensor(), torch::relu(expected)));
  return count;
}

TEST(ReducedOnce, TheSecondReaderPaysNothing) {
  on_ranks(3, [](int rank) {
    const torch::Tensor x = pending(line(3), rank);
    EXPECT_EQ(cost_of_reading(x, sum_of_terms(3)), 1);
    EXPECT_EQ(cost_of_reading(x, sum_of_terms(3)), 0);
    EXPECT_EQ(DTensor(x).placements(), mt::Placements{Partial()});
  });
}

// A product with what is pending beside it would be cheaper with other layouts if the reduction had to be
// paid.
TEST(ReducedOnce, TheChoiceKnowsWhatWasReduced) {
  on_ranks(2, [](int rank) {
    const mt::DeviceMesh mesh = line(2);
    const torch::Tensor x = pending(mesh, rank);
    EXPECT_EQ(cost_of_reading(x, sum_of_terms(2)), 1);
    EXPECT_EQ(DTensor(x * 2).placements(),
              mt::Placements{Partial()});  // reading it does not change what is linear
    const torch::Tensor gradient = pending(mesh, rank);
    const mt::CommDebugMode comm;
    const DTensor passed = torch::threshold_backward(gradient, x, 0);
    EXPECT_EQ(comm.get_total_counts(), 0) << comm.table();
    EXPECT_EQ(passed.placements(), mt::Placements{Partial()});
    EXPECT_TRUE(
        is_equal(passed.full_tensor(), torch::threshold_backward(sum_of_terms(2), sum_of_terms(2), 0)));
  });
}

TEST(ReducedOnce, AWriteIsSeenHoweverItIsMade) {
  on_ranks(2, [](int rank) {
    const mt::DeviceMesh mesh = line(2);
    using Write = std::function<void(torch::Tensor&)>;
    const std::vector<Write> writes{
        [](torch::Tensor& x) { x.view({-1}).mul_(2); },
        [](torch::Tensor& x) { x.t().mul_(2); },
        [](torch::Tensor& x) { x.detach().mul_(2); },
        [](torch::Tensor& x) { x.variable_data().mul_(2); },
        [](torch::Tensor& x) { x.variable_data().view({-1}).mul_(2); },
        [](torch::Tensor& x) { DTensor(x).to_local().mul_(2); },
        [](torch::Tensor& x) { x.add_(x.detach()); },
        [](torch::Tensor& x) { x.set_data(x * 2); },
        [](torch::Tensor& x) { torch::mul_out(x, x, torch::full({}, 2.0F)); },
    };
    for (const Write& write : writes) {
      torch::Tensor x = pending(mesh, rank);
      EXPECT_EQ(cost_of_reading(x, sum_of_terms(2)), 1);
      write(x);
      EXPECT_EQ(cost_of_reading(x, sum_of_terms(2) * 2), 1);
      EXPECT_EQ(cost_of_reading(x, sum_of_terms(2) * 2), 0);
    }
    torch::Tensor local = numbers({4, 3});
    const torch::Tensor x = DTensor::from_local(local, mesh, {Partial()});
    EXPECT_EQ(cost_of_reading(x, numbers({4, 3}) * 2), 1);
    local.mul_(3);  // the memory is the caller's too
    EXPECT_EQ(cost_of_reading(x, numbers({4, 3}) * 6), 1);
  });
}

TEST(ReducedOnce, ScalingInPlaceScalesWhatWasReduced) {
  on_ranks(3, [](int rank) {
    const mt::DeviceMesh mesh = line(3);
    torch::Tensor x = pending(mesh, rank);
    torch::Tensor expected = sum_of_terms(3);
    x.mul_(0.5);  // before anything was reduced
    expected.mul_(0.5);
    EXPECT_EQ(cost_of_reading(x, expected), 1);
    const torch::Tensor read = DTensor(x).redistribute({Replicate()});
    const torch::Tensor before = expected.clone();
    x.mul_(2).div_(torch::full({}, 4.0F));
    torch::_foreach_mul_({x}, 8);
    torch::_foreach_div_({x}, 2);
    expected.mul_(2).div_(4).mul_(8).div_(2);
    EXPECT_EQ(cost_of_reading(x, expected), 0);
    EXPECT_TRUE(is_equal(DTensor(read).full_tensor(), before)) << "what was read is a tensor of its own";
    EXPECT_EQ(DTensor(x).placements(), mt::Placements{Partial()});
    if (rank == 1) DTensor(x).to_local().zero_();  // the other ranks do not see it
    x.mul_(2);
    const torch::Tensor without = (sum_of_terms(3) - numbers({4, 3}) * 2) * 2;
    EXPECT_EQ(cost_of_reading(x, without), 1);
  });
}

TEST(ReducedOnce, ResultsAreTensorsOfTheirOwn) {
  on_ranks(2, [](int rank) {
    const torch::Tensor x = pending(line(2), rank);
    cost_of_reading(x, sum_of_terms(2));
    torch::Tensor a = DTensor(x).redistribute({Replicate()});
    a.add_(1);
    const torch::Tensor b = DTensor(x).redistribute({Replicate()});
    EXPECT_TRUE(is_equal(DTensor(a).full_tensor(), sum_of_terms(2) + 1));
    EXPECT_TRUE(is_equal(DTensor(b).full_tensor(), sum_of_terms(2)));
    torch::Tensor row = x[1];
    row.zero_();
    torch::Tensor expected = sum_of_terms(2);
    expected[1].zero_();
    cost_of_reading(x, expected);
  });
}

TEST(ReducedOnce, AnotherLayoutIsCutFromTheKeptValue) {
  on_ranks(2, [](int rank) {
    const mt::DeviceMesh mesh = line(2);
    const torch::Tensor x = pending(mesh, rank);
    EXPECT_EQ(cost_of_reading(x, sum_of_terms(2)), 1);
    const torch::Tensor split = mt::distribute_tensor(numbers({4, 3}), mesh, {Shard(0)});
    const mt::CommDebugMode comm;
    const torch::Tensor y = torch::maximum(split, x);
    EXPECT_EQ(comm.get_total_counts(), 0) << comm.table();
    EXPECT_TRUE(is_equal(DTensor(y).full_tensor(), torch::maximum(numbers({4, 3}), sum_of_terms(2))));
  });
}

// Rank 2 has no column: it must keep what the others keep.
TEST(ReducedOnce, RanksWithoutElementsKeepTheSame) {
  on_ranks(3, [](int rank) {
    const mt::DeviceMesh mesh = line(3);
    const torch::Tensor terms = numbers({5, 4}) * static_cast<float>(rank + 1);
    const torch::Tensor x = DTensor::from_local(terms, mesh, {Partial()});
    const torch::Tensor whole = numbers({5, 4}) * 6.0F;
    EXPECT_EQ(cost_of_reading(x, whole), 1);
    const torch::Tensor columns = mt::distribute_tensor(numbers({5, 4}), mesh, {Shard(1)});
    const mt::CommDebugMode comm;
    const torch::Tensor y = torch::maximum(columns, x);
    EXPECT_EQ(comm.get_total_counts(), 0) << comm.table();
    EXPECT_TRUE(is_equal(DTensor(y).full_tensor(), torch::maximum(numbers({5, 4}), whole)));
    EXPECT_EQ(cost_of_reading(x, whole), 0);
  });
}

TEST(ReducedOnce, WorksInInferenceMode) {
  on_ranks(2, [](int rank) {
    const c10::InferenceMode mode;
    torch::Tensor x = pending(line(2), rank);
    cost_of_reading(x, sum_of_terms(2));
    x.mul_(2);
    cost_of_reading(x, sum_of_terms(2) * 2);
  });
}

// One gradient for two leaves is copied, term by term.
TEST(ReducedOnce, APendingGradientIsCopiedUnreduced) {
  on_ranks(2, [](int rank) {
    const mt::DeviceMesh mesh = line(2);
    torch::Tensor a = mt::ones({4, 3}, mesh, {Replicate()}).requires_grad_();
    torch::Tensor b = mt::ones({4, 3}, mesh, {Replicate()}).requires_grad_();
    const torch::Tensor gradient = pending(mesh, rank);
    const mt::CommDebugMode comm;
    (a + b).backward(gradient);
    EXPECT_EQ(comm.get_total_counts(), 0) << comm.table();
    for (const torch::Tensor& grad : {a.grad(), b.grad()}) {
      EXPECT_EQ(DTensor(grad).placements(), mt::Placements{Partial()});
      EXPECT_TRUE(is_equal(DTensor(grad).full_tensor(), sum_of_terms(2)));
    }
  });
}

// An optimiser reads a gradient two or three times; without reduce_gradients each is reduced once.
TEST(ReducedOnce, AnOptimiserReducesEachGradientOnce) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = line(2);
    torch::Tensor w = mt::ones({4, 3}, mesh, {Replicate()}).requires_grad_();
    torch::Tensor b = mt::ones({3}, mesh, {Replicate()}).requires_grad_();
    const torch::Tensor x = mt::distribute_tensor(numbers({6, 4}), mesh, {Shard(0)});
    torch::optim::AdamW adam({w, b}, torch::optim::AdamWOptions(1e-2));
    for (int step = 0; step < 2; ++step) {
      adam.zero_grad();
      (torch::mm(x, w) + b).square().sum().backward();
      EXPECT_TRUE(DTensor(w.grad()).placements()[0].is_partial());
      const mt::CommDebugMode comm;
      adam.step();
      EXPECT_EQ(comm.get_total_counts(), 2) << comm.table();
    }
  });
}

// The batch comes as plain shards: its size is assumed until something is sent, the gradients' is known.
TEST(ReduceGradients, SumTogetherWhereTheBatchCameFromLocal) {
  on_ranks(2, [](int rank) {
    const mt::DeviceMesh mesh = line(2);
    std::vector<torch::Tensor> parameters;
    torch::Tensor h = DTensor::from_local(numbers({3, 4}) + static_cast<float>(rank), mesh, {Shard(0)});
    for (int layer = 0; layer < 7; ++layer) {
      parameters.push_back(mt::full({4, 4}, 0.1, mesh, {Replicate()}).requires_grad_());
      parameters.push_back(mt::zeros({4}, mesh, {Replicate()}).requires_grad_());
      h = torch::addmm(parameters.back(), h, parameters[parameters.size() - 2]);
    }
    h.square().sum().backward();
    const mt::CommDebugMode comm;
    mt::reduce_gradients(parameters);
    EXPECT_EQ(comm.get_total_counts(), 1) << comm.table();
    for (const torch::Tensor& p : parameters)
      EXPECT_EQ(DTensor(p.grad()).placements(), mt::Placements{Replicate()});
  });
}

}  // namespace
}  // namespace meshtorch::testing

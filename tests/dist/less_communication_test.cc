// Layouts that survive operators: nothing is sent where each rank can work on what it has.
#include "meshtorch/decision_log.h"
#include "numbers.h"

namespace meshtorch::testing {
namespace {

using mt::Collective;
using mt::DTensor;
using mt::Partial;
using mt::Placements;
using mt::ReduceOp;
using mt::Replicate;
using mt::Shard;
using torch::Tensor;

Tensor whole(const Tensor& tensor) { return DTensor(tensor).full_tensor().detach(); }

// ---- a batch that is not the first dim ----

// Under data parallelism a sequence-first batch is split along dim 1, which `linear` flattens with dim 0.
// LibTorch's module asks twice whether queries, keys and values are equal, and ranks agree on each answer by
// one number.
TEST(LessCommunication, ASequenceFirstEncoderLayerUnderDpSendsNothingButGradients) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = line(2);
    const auto make = [] {
      torch::nn::TransformerEncoderLayer layer(
          torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(12).dropout(0.0));
      const torch::NoGradGuard no_grad;
      int64_t seed = 0;
      for (Tensor& p : layer->parameters()) p.set_data(numbers(p.sizes(), torch::kDouble, seed++) / 8);
      return layer;
    };
    torch::nn::TransformerEncoderLayer plain = make(), split = make();
    for (Tensor& p : split->parameters()) p.set_data(mt::distribute_tensor(p.detach(), mesh, {Replicate()}));
    const Tensor x = numbers({5, 4, 8}, torch::kDouble, 3);
    const Tensor x_split = mt::distribute_tensor(x, mesh, {Shard(1)});

    const mt::DecisionLog log;
    mt::CommDebugMode forward;
    const Tensor y = split(x_split);
    EXPECT_EQ(DTensor(y).placements(), Placements{Shard(1)});
    EXPECT_EQ(forward.get_comm_counts()[Collective::all_reduce], 2) << log.table();
    EXPECT_EQ(forward.get_total_counts(), 2) << log.table();
    forward.stop();
    const mt::CommDebugMode comm;
    y.square().sum().backward();
    EXPECT_EQ(comm.get_total_counts(), 0) << log.table();
    mt::reduce_gradients(split->parameters());
    EXPECT_EQ(comm.get_comm_counts()[Collective::all_reduce_coalesced], 1) << comm.table();
    EXPECT_EQ(comm.get_total_counts(), 1) << comm.table();

    const Tensor expected = plain(x);
    expected.square().sum().backward();
    EXPECT_TRUE(is_close(whole(y), expected.detach(), 1e-10));
    for (std::size_t i = 0; i < plain->parameters().size(); ++i)
      EXPECT_TRUE(is_close(whole(split->parameters()[i].grad()), plain->parameters()[i].grad(), 1e-9)) << i;
  });
}

TEST(LessCommunication, RanksCompareTheirOwnParts) {
  on_ranks(3, [](int) {
    const mt::DeviceMesh mesh = line(3);
    const Tensor x = numbers({7, 4});
    Tensor other = x.clone();
    other[6][1] = 50;  // of the last rank
    const auto split = [&](const Tensor& t) { return mt::distribute_tensor(t, mesh, {Shard(0)}); };
    const auto copies = [&](const Tensor& t) { return mt::distribute_tensor(t, mesh, {Replicate()}); };
    const std::vector<std::tuple<Tensor, Tensor, bool, int64_t>> cases{
        {split(x), split(x), true, 1},   {split(x), split(other), false, 1},
        {split(x), copies(x), true, 1},  {copies(x), split(other), false, 1},
        {copies(x), copies(x), true, 0}, {mt::distribute_tensor(x, mesh, {Partial()}), split(x), true, 2}};
    for (const auto& [a, b, is_same, count] : cases) {
      const mt::CommDebugMode comm;
      EXPECT_EQ(torch::equal(a, b), is_same);
      EXPECT_EQ(comm.get_total_counts(), count) << comm.table();
    }
  });
}

// ---- pending maxima and minima ----

struct Ordered {
  const char* name;
  std::function<Tensor(const Tensor&)> function;
  bool is_turned = false;  // the largest becomes the smallest
};

std::vector<Ordered> functions_of_order() {
  return {{"relu", [](const Tensor& x) { return torch::relu(x); }},
          {"exp", [](const Tensor& x) { return torch::exp(x); }},
          {"tanh", [](const Tensor& x) { return torch::tanh(x); }},
          {"sign", [](const Tensor& x) { return torch::sign(x); }},
          {"clamp", [](const Tensor& x) { return torch::clamp(x, -1, 1); }},
          {"hardtanh", [](const Tensor& x) { return torch::hardtanh(x); }},
          {"erfc", [](const Tensor& x) { return torch::erfc(x); }, true},
          {"neg", [](const Tensor& x) { return -x; }, true},
          {"masked_fill", [](const Tensor& x) { return x.masked_fill(x.new_zeros(x.sizes()).eq(0), 0.5); }},
          {"view", [](const Tensor& x) { return x.view({-1}); }}};
}

TEST(LessCommunication, PendingMaximaPassThroughWhatKeepsOrder) {
  on_ranks(3, [](int rank) {
    const mt::DeviceMesh mesh = line(3);
    for (const ReduceOp op : {ReduceOp::max, ReduceOp::min}) {
      const Tensor x = DTensor::from_local(numbers({4, 3}, torch::kFloat, rank), mesh, {Partial(op)});
      const Tensor expected = whole(x);
      for (const Ordered& one : functions_of_order()) {
        SCOPED_TRACE(one.name);
        const mt::CommDebugMode comm;
        const Tensor y = one.function(x);
        EXPECT_EQ(comm.get_total_counts(), 0) << comm.table();
        const ReduceOp other = op == ReduceOp::max ? ReduceOp::min : ReduceOp::max;
        EXPECT_EQ(DTensor(y).placements(), Placements{Partial(one.is_turned ? other : op)});
        EXPECT_TRUE(is_equal(whole(y), one.function(expected)));
      }
    }
  });
}

TEST(LessCommunication, AFunctionThatIsNotDefinedForEveryTermReducesFirst) {
  on_ranks(2, [](int rank) {
    // The smaller term has no logarithm.
    const Tensor x =
        DTensor::from_local(torch::full({3}, rank == 0 ? -1.0F : 2.0F), line(2), {Partial(ReduceOp::max)});
    EXPECT_TRUE(is_equal(whole(torch::log(x)), torch::full({3}, 2.0F).log()));
    EXPECT_TRUE(is_equal(whole(torch::sqrt(x)), torch::full({3}, 2.0F).sqrt()));
  });
}

TEST(LessCommunication, PlacesInASortedListAreCountedInItsParts) {
  on_ranks(4, [](int rank) {
    const mt::DeviceMesh mesh = line(4);
    const Tensor limits = torch::tensor({-1.5F, -0.5F, 0.0F, 0.5F, 1.0F, 1.5F});
    const Tensor values = numbers({5, 3});
    const Tensor split = mt::distribute_tensor(limits, mesh, {Shard(0)});  // uneven
    const Tensor copies = mt::distribute_tensor(values, mesh, {Replicate()});
    const Tensor largest =
        DTensor::from_local(numbers({5, 3}, torch::kFloat, rank), mesh, {Partial(ReduceOp::max)});
    const Tensor whole_largest = whole(largest);
    const Tensor all_limits = mt::distribute_tensor(limits, mesh, {Replicate()});

    const mt::CommDebugMode comm;
    const Tensor places = torch::bucketize(copies, split);
    const Tensor searched = torch::searchsorted(split, copies, false, /*right=*/true);
    const Tensor of_largest = torch::bucketize(largest, all_limits);
    EXPECT_EQ(comm.get_total_counts(), 0) << comm.table();
    EXPECT_EQ(DTensor(of_largest).placements(), Placements{Partial(ReduceOp::max)});
    EXPECT_TRUE(is_equal(whole(places), torch::bucketize(values, limits)));
    EXPECT_TRUE(is_equal(whole(searched), torch::searchsorted(limits, values, false, true)));
    EXPECT_TRUE(is_equal(whole(of_largest), torch::bucketize(whole_largest, limits)));
  });
}

// ---- a pending sum that is divided ----

TEST(LessCommunication, APendingSumIsDividedByATensorWithoutZeros) {
  on_ranks(3, [](int rank) {
    const mt::DeviceMesh mesh = line(3);
    const Tensor terms = numbers({4, 3}, torch::kDouble, rank);
    const std::vector<Tensor> divisors{numbers({4, 3}, torch::kDouble, 5).abs() + 0.5,
                                       numbers({3}, torch::kDouble, 6).abs() + 0.5, torch::full({1}, -2.0),
                                       torch::tensor({3, -1, 2})};
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg}) {
      const DTensor x = DTensor::from_local(terms, mesh, {Partial(op)});
      const Tensor value = whole(x);
      for (const Tensor& divisor : divisors) {
        const Tensor copies = mt::distribute_tensor(divisor, mesh, {Replicate()});
        const Tensor written = x.clone();
        const mt::CommDebugMode comm;
        const Tensor y = x / copies;
        written.div_(copies);
        EXPECT_EQ(comm.get_total_counts(), 0) << comm.table();
        EXPECT_EQ(DTensor(y).placements(), Placements{Partial(op)});
        EXPECT_TRUE(is_close(whole(y), value / divisor, 1e-12));
        EXPECT_TRUE(is_close(whole(written), value / divisor, 1e-12));
      }
    }
  });
}

// The same call again, with a zero: terms of both signs would become infinities that do not add up.
TEST(LessCommunication, APendingSumIsReducedBeforeItIsDividedByZero) {
  on_ranks(2, [](int rank) {
    const mt::DeviceMesh mesh = line(2);
    const Tensor divisor = torch::tensor({2.0, 4.0});
    const Tensor copies = mt::distribute_tensor(divisor, mesh, {Replicate()});
    const DTensor x = DTensor::from_local(torch::full({2}, rank == 0 ? 3.0 : -1.0), mesh, {Partial()});
    for (const double second : {4.0, 0.0, 8.0}) {
      copies[1].fill_(second);
      const Tensor y = x / copies;
      const bool is_pending = second != 0;
      EXPECT_EQ(DTensor(y).placements(), Placements{is_pending ? Partial() : Replicate()});
      EXPECT_TRUE(is_equal(whole(y), torch::tensor({1.0, 2.0 / second})));
    }
    // Parts that differ between ranks are not looked at.
    const Tensor parts = mt::distribute_tensor(torch::tensor({1.0, 0.0}), mesh, {Shard(0)});
    const Tensor quotient = x / parts;
    EXPECT_TRUE(is_equal(whole(quotient), torch::tensor({2.0, 2.0}) / torch::tensor({1.0, 0.0})));
  });
}

TEST(LessCommunication, ADividedSumKeepsTheSplitOfOtherAxes) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    const Tensor x = numbers({5, 3}, torch::kDouble), divisor = x.abs() + 1;  // 5 is uneven
    const DTensor split = mt::distribute_tensor(x, mesh, {Partial(), Shard(0)});
    const Tensor copies = mt::distribute_tensor(divisor, mesh, {Replicate(), Replicate()});
    const mt::CommDebugMode comm;
    const Tensor y = split / copies;
    EXPECT_EQ(comm.get_total_counts(), 0) << comm.table();
    EXPECT_EQ(DTensor(y).placements(), (Placements{Partial(), Shard(0)}));
    EXPECT_TRUE(is_close(whole(y), x / divisor, 1e-12));
  });
}

// ---- what is written over ----

TEST(LessCommunication, APendingTensorIsNotReducedToBeWrittenOver) {
  on_ranks(3, [](int rank) {
    const mt::DeviceMesh mesh = line(3);
    const Tensor copies = mt::distribute_tensor(numbers({3}), mesh, {Replicate()});
    using Write = std::function<void(const Tensor&)>;
    const std::vector<std::pair<Write, Tensor>> writes{
        {[](const Tensor& x) { x.zero_(); }, torch::zeros({4, 3})},
        {[](const Tensor& x) { x.fill_(2.5); }, torch::full({4, 3}, 2.5F)},
        {[&](const Tensor& x) { x.copy_(copies); }, numbers({3}).expand({4, 3}).contiguous()},
    };
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::max, ReduceOp::product}) {
      for (const auto& [write, expected] : writes) {
        const Tensor x = DTensor::from_local(numbers({4, 3}, torch::kFloat, rank), mesh, {Partial(op)});
        const mt::CommDebugMode comm;
        write(x);
        EXPECT_EQ(comm.get_total_counts(), 0) << comm.table();
        EXPECT_EQ(DTensor(x).placements(), Placements{Partial(op)});
        EXPECT_TRUE(is_equal(whole(x), expected));
      }
    }
  });
}

// ---- numbers of a whole tensor ----

TEST(LessCommunication, PendingNumbersWithoutDimsAreAddedToEachOther) {
  on_ranks(3, [](int) {
    const mt::DeviceMesh mesh = line(3);
    const Tensor term = torch::ones({}, torch::kDouble);
    const Tensor x = DTensor::from_local(term, mesh, {Partial()});
    const Tensor y = DTensor::from_local(term * 2, mesh, {Partial()});
    const Tensor first = mt::distribute_tensor(torch::zeros({1}, torch::kLong), mesh, {Replicate()});
    const mt::CommDebugMode comm;
    const Tensor sum = x.index_add(0, first, y), copy = x.index_copy(0, first, y);
    EXPECT_EQ(DTensor(sum).placements(), Placements{Partial()});
    EXPECT_EQ(DTensor(copy).placements(), Placements{Partial()});
    EXPECT_EQ(comm.get_total_counts(), 0) << comm.table();
    EXPECT_EQ(whole(sum).item<double>(), 9);
    EXPECT_EQ(whole(copy).item<double>(), 6);
  });
}

TEST(LessCommunication, AVarianceOfSplitLinesIsOneSmallGather) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    const Tensor x = numbers({5, 6, 3}, torch::kDouble);  // 5 is uneven
    for (const Placements& lies : {Placements{Shard(0), Shard(1)},
                                   {Shard(1), Shard(1)},
                                   {Replicate(), Shard(1)},
                                   {Shard(2), Shard(1)},
                                   {Shard(0), mt::StridedShard(1, 3)}}) {
      const Tensor split = mt::distribute_tensor(x, mesh, lies);
      for (const bool keepdim : {false, true}) {
        const mt::CommDebugMode comm;
        const Tensor y = torch::var(split, at::IntArrayRef{1}, /*unbiased=*/true, keepdim);
        EXPECT_EQ(comm.get_comm_counts()[Collective::all_gather_into_tensor], 1) << comm.table();
        EXPECT_EQ(comm.get_total_counts(), 1) << comm.table();
        EXPECT_TRUE(is_close(whole(y), torch::var(x, at::IntArrayRef{1}, true, keepdim), 1e-12));
      }
      EXPECT_TRUE(is_close(whole(torch::std(split)), torch::std(x), 1e-12));
    }
  });
}

TEST(LessCommunication, AHistogramWithoutLimitsLearnsBothInOneCollective) {
  on_ranks(3, [](int) {
    const Tensor x = numbers({7, 3});
    const Tensor split = mt::distribute_tensor(x, line(3), {Shard(0)});
    const mt::CommDebugMode comm;
    const Tensor counts = torch::histc(split, 4);
    EXPECT_EQ(comm.get_comm_counts()[Collective::all_gather_into_tensor], 1) << comm.table();
    EXPECT_EQ(comm.get_total_counts(), 1) << comm.table();
    EXPECT_TRUE(is_equal(whole(counts), torch::histc(x, 4)));
  });
}

TEST(LessCommunication, AHistogramWithoutLimitsKnowsThemWhereverTheyLie) {
  on_ranks(4, [](int rank) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    const Tensor x = numbers({3, 5}, torch::kDouble);  // a rank has no row
    for (const Placements& lies : {Placements{Shard(0), Shard(0)},
                                   {Shard(0), Shard(1)},
                                   {Replicate(), Shard(0)},
                                   {Replicate(), Replicate()},
                                   {Partial(), Shard(1)},
                                   {Partial(), Partial()}}) {
      SCOPED_TRACE(mt::to_string(lies));
      EXPECT_TRUE(is_equal(whole(torch::histc(mt::distribute_tensor(x, mesh, lies), 4)), torch::histc(x, 4)));
    }
    const Tensor one = mt::distribute_tensor(torch::full({3}, 2.0), mesh, {Shard(0), Shard(0)});
    EXPECT_TRUE(is_equal(whole(torch::histc(one, 3)), torch::histc(torch::full({3}, 2.0), 3)));
    const Tensor largest = DTensor::from_local(torch::full({2, 2}, rank * 1.0), mesh,
                                               {Partial(ReduceOp::max), Partial(ReduceOp::min)});
    EXPECT_TRUE(is_equal(whole(torch::histc(largest, 3)), torch::histc(whole(largest), 3)));
  });
}

TEST(LessCommunication, AMeanLossOfASplitBatchIsOneReduction) {
  on_ranks(3, [](int) {
    const mt::DeviceMesh mesh = line(3);
    const Tensor logits = numbers({7, 5});  // uneven
    const Tensor classes = torch::tensor({0, 3, 1, -100, 4, 2, 2});
    const Tensor truths = numbers({7, 5}, torch::kFloat, 3).gt(0).to(torch::kFloat);
    const auto split = [&](const Tensor& t) { return mt::distribute_tensor(t, mesh, {Shard(0)}); };
    const std::vector<std::pair<std::function<Tensor(const Tensor&, const Tensor&)>, Tensor>> losses{
        {[](const Tensor& a, const Tensor& b) { return torch::cross_entropy_loss(a, b); }, classes},
        {[](const Tensor& a, const Tensor& b) { return torch::binary_cross_entropy_with_logits(a, b); },
         truths},
        {[](const Tensor& a, const Tensor& b) { return torch::mse_loss(a, b); }, truths}};
    for (const auto& [loss, target] : losses) {
      const Tensor x = split(logits).requires_grad_(), plain = logits.clone().requires_grad_();
      const Tensor there = split(target);
      const mt::CommDebugMode comm;
      const Tensor value = loss(x, there);
      const Tensor number = whole(value);
      EXPECT_EQ(comm.get_comm_counts()[Collective::all_reduce], 1) << comm.table();
      value.backward();
      EXPECT_EQ(comm.get_total_counts(), 1) << comm.table();
      const Tensor expected = loss(plain, target);
      expected.backward();
      EXPECT_TRUE(is_close(number, expected.detach()));
      EXPECT_EQ(DTensor(x.grad()).placements(), Placements{Shard(0)});
      EXPECT_TRUE(is_close(whole(x.grad()), plain.grad()));
    }
  });
}

// ---- operands that lie differently ----

TEST(LessCommunication, OneOfThreeOperandsIsMovedWhereTwoAgree) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = line(4);
    const Tensor choice = numbers({10, 10}).gt(0), a = numbers({10, 1, 10}), b = numbers({10, 10, 1});
    const Tensor split_choice = mt::distribute_tensor(choice, mesh, {Shard(1)});
    const Tensor split_a = mt::distribute_tensor(a, mesh, {Shard(0)});
    const Tensor split_b = mt::distribute_tensor(b, mesh, {Shard(0)});
    const mt::CommDebugMode comm;
    const Tensor y = torch::where(split_choice, split_a, split_b);
    EXPECT_EQ(comm.get_total_counts(), 1) << comm.table();
    EXPECT_TRUE(is_equal(whole(y), torch::where(choice, a, b)));
  });
}

TEST(LessCommunication, ValuesThatAreTheSameForAllPlacesAreSplitWithTheTensor) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = line(2);
    const Tensor x = numbers({5, 4}), values = numbers({4}, torch::kFloat, 2);
    const Tensor rows = torch::tensor({true, false, true, true, false});
    const Tensor split = mt::distribute_tensor(x, mesh, {Shard(1)});
    const Tensor split_values = mt::distribute_tensor(values, mesh, {Shard(0)});
    const Tensor copies = mt::distribute_tensor(rows, mesh, {Replicate()});
    const mt::CommDebugMode comm;
    const Tensor y = torch::index_put(split, {copies}, split_values);
    EXPECT_EQ(comm.get_total_counts(), 0) << comm.table();
    EXPECT_TRUE(is_equal(whole(y), torch::index_put(x, {rows}, values)));
  });
}

// ---- views ----

TEST(LessCommunication, ASplitInFrontOfDimsThatDoNotDivideEachOtherSurvivesAView) {
  on_ranks(2, [](int) {
    const Tensor x = numbers({12, 5, 4});
    for (const mt::Placement& lies : {Shard(0), mt::StridedShard(0, 3)}) {
      const Tensor split = mt::distribute_tensor(x, line(2), {lies});
      const mt::CommDebugMode comm;
      const Tensor y = split.view({6, 4, 10});
      EXPECT_EQ(comm.get_total_counts(), 0) << comm.table();
      EXPECT_EQ(DTensor(y).placements(), Placements{lies});
      EXPECT_TRUE(is_equal(whole(y), x.view({6, 4, 10})));
    }
  });
}

}  // namespace
}  // namespace meshtorch::testing

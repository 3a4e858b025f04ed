// Results that are still under way: every way to the data waits for it, once, and a failure stays a failure.
#include <meshtorch/memory.h>

#include <future>

#include "backends/pending.h"
#include "rank_data.h"

namespace meshtorch::testing {
using namespace internal;
namespace {

// A pending tensor whose data comes when it is asked for; counts how often that happens.
struct Coming {
  int asked = 0;
  torch::Tensor tensor;
  explicit Coming(torch::Tensor data = torch::arange(6.0F).view({2, 3})) {
    tensor = make_pending(data.sizes(), data.options(), [this, data] {
      ++asked;
      return data;
    });
  }
};

const torch::Tensor kData = torch::arange(6.0F).view({2, 3});

TEST(Pending, KnowsItsShapeWithoutWaiting) {
  Coming x;
  EXPECT_EQ(x.tensor.sizes(), at::IntArrayRef({2, 3}));
  EXPECT_EQ(x.tensor.scalar_type(), torch::kFloat);
  EXPECT_TRUE(x.tensor.is_contiguous());
  EXPECT_EQ(x.tensor.device(), torch::Device(torch::kCPU));
  EXPECT_FALSE(x.tensor.requires_grad());
  EXPECT_TRUE(mt::is_pending(x.tensor));
  EXPECT_EQ(x.asked, 0);
}

TEST(Pending, WaitTensorWaitsOnceAndGivesTheSameTensor) {
  Coming x;
  const torch::Tensor same = mt::wait_tensor(x.tensor);
  EXPECT_TRUE(same.is_same(x.tensor));
  EXPECT_FALSE(mt::is_pending(x.tensor));
  EXPECT_TRUE(is_equal(mt::wait_tensor(x.tensor), kData));
  EXPECT_EQ(x.asked, 1);
  EXPECT_FALSE(mt::is_pending(kData));
  EXPECT_TRUE(mt::wait_tensor(kData).is_same(kData));
  EXPECT_FALSE(mt::is_pending(torch::Tensor()));
}

// Each way to the data, from a tensor that is pending to one that equals kData.
const std::vector<std::pair<std::string, std::function<torch::Tensor(const torch::Tensor&)>>> kWays{
    {"operator", [](const torch::Tensor& t) { return t + 0; }},
    {"composite operator", [](const torch::Tensor& t) { return t.reshape({6}).reshape({2, 3}); }},
    {"second argument", [](const torch::Tensor& t) { return torch::zeros({2, 3}) + t; }},
    {"view", [](const torch::Tensor& t) { return t.view({3, 2}).view({2, 3}); }},
    {"list", [](const torch::Tensor& t) { return torch::cat({torch::empty({0, 3}), t}); }},
    {"optional list", [](const torch::Tensor& t) { return t.index({torch::arange(2)}); }},
    {"data_ptr",
     [](const torch::Tensor& t) { return torch::from_blob(t.data_ptr<float>(), {2, 3}).clone(); }},
    {"const_data_ptr",
     [](const torch::Tensor& t) {
       return torch::tensor(at::ArrayRef<float>(t.const_data_ptr<float>(), 6)).view({2, 3});
     }},
    {"accessor",
     [](const torch::Tensor& t) { return torch::full({2, 3}, t.accessor<float, 2>()[1][2] - 5) + kData; }},
    {"item", [](const torch::Tensor& t) { return kData + (t[1][2].item<float>() - 5); }},
    {"copy from", [](const torch::Tensor& t) { return torch::empty({2, 3}).copy_(t); }},
    {"clone", [](const torch::Tensor& t) { return t.clone(); }},
    {"detach", [](const torch::Tensor& t) { return t.detach(); }},
    {"variable_data", [](const torch::Tensor& t) { return t.variable_data(); }},
    {"in-place", [](const torch::Tensor& t) { return torch::Tensor(t).add_(1).sub_(1); }},
    {"out",
     [](const torch::Tensor& t) {
       torch::Tensor out = t;
       return torch::add_out(out, kData, kData).div_(2);
     }},
    {"storage", [](const torch::Tensor& t) { return torch::empty({0}).set_(t.storage(), 0, {2, 3}); }},
    {"is_alias_of",
     [](const torch::Tensor& t) {
       EXPECT_FALSE(t.is_alias_of(kData));
       return t;
     }},
    {"to", [](const torch::Tensor& t) { return t.to(torch::kDouble).to(torch::kFloat); }},
    {"contiguous", [](const torch::Tensor& t) { return t.contiguous(); }},
    {"no grad",
     [](const torch::Tensor& t) {
       const torch::NoGradGuard guard;
       return t * 1;
     }},
    {"inference mode",
     [](const torch::Tensor& t) {
       const c10::InferenceMode guard;
       return t.mul(1).clone();
     }},
    {"resize", [](const torch::Tensor& t) { return torch::Tensor(t).resize_({2, 3}); }},
};

TEST(Pending, EveryWayToTheDataWaitsOnce) {
  for (const auto& [name, way] : kWays) {
    SCOPED_TRACE(name);
    Coming x(kData.clone());
    EXPECT_TRUE(is_equal(way(x.tensor), kData));
    EXPECT_TRUE(is_equal(x.tensor, kData));
    EXPECT_FALSE(mt::is_pending(x.tensor));
    EXPECT_EQ(x.asked, 1);
  }
}

TEST(Pending, PrintsItsData) {
  Coming x;
  std::ostringstream pending;
  std::ostringstream plain;
  pending << x.tensor;
  plain << kData;
  EXPECT_EQ(pending.str(), plain.str());
}

TEST(Pending, SetDataPassesOnWhatIsStillComing) {
  Coming x;
  torch::Tensor parameter = torch::zeros({1}).requires_grad_();
  parameter.set_data(x.tensor);
  EXPECT_EQ(x.asked, 0);
  EXPECT_TRUE(mt::is_pending(parameter));
  EXPECT_TRUE(is_equal(parameter.detach(), kData));
  EXPECT_FALSE(mt::is_pending(parameter));
  EXPECT_TRUE(parameter.requires_grad() && parameter.is_leaf());
  EXPECT_TRUE(is_equal(x.tensor, kData));
  EXPECT_EQ(x.asked, 1);
  EXPECT_EQ(parameter.data_ptr(), x.tensor.data_ptr());
}

TEST(Pending, SetDataOnAPendingTensorReplacesIt) {
  Coming x;
  Coming y;
  x.tensor.set_data(torch::ones({2}));
  EXPECT_TRUE(is_equal(x.tensor, torch::ones({2})));
  y.tensor.set_data(Coming().tensor);
  EXPECT_TRUE(is_equal(y.tensor, kData));
  EXPECT_EQ(x.asked + y.asked, 0);
}

TEST(Pending, TwoThreadsMayAskAtOnce) {
  for (int round = 0; round < 50; ++round) {
    Coming x;
    const auto use = [&] { return (x.tensor * 2).sum().item<float>(); };
    auto other = std::async(std::launch::async, use);
    EXPECT_EQ(use(), 30);
    EXPECT_EQ(other.get(), 30);
    EXPECT_EQ(x.asked, 1);
  }
}

TEST(Pending, AFailureIsThrownAtEveryUse) {
  int asked = 0;
  const torch::Tensor x = make_pending({2}, torch::kFloat, [&]() -> at::Tensor {
    ++asked;
    TORCH_CHECK(false, "the work failed");
  });
  for (int use = 0; use < 3; ++use) {
    EXPECT_EQ(error_of([&] { x + 1; }), "the work failed");
    EXPECT_EQ(error_of([&] { x.data_ptr(); }), "the work failed");
    EXPECT_EQ(error_of([&] { torch::cat({x, x}); }), "the work failed");
    EXPECT_EQ(error_of([&] { mt::wait_tensor(x); }), "the work failed");
    EXPECT_TRUE(mt::is_pending(x));
  }
  EXPECT_EQ(asked, 1);
}

TEST(Pending, BackwardReachesThroughAPendingResult) {
  Coming x;
  x.tensor.requires_grad_();
  const torch::Tensor loss = (x.tensor * x.tensor).sum();
  loss.backward();
  EXPECT_TRUE(is_equal(x.tensor.grad(), 2 * kData));
}

TEST(Pending, CollectivesTakePendingTensors) {
  on_ranks(3, [](int rank) {
    Coming x;
    Coming y;
    EXPECT_TRUE(is_equal(mt::all_reduce(x.tensor, "sum", {}), 3 * kData));
    EXPECT_TRUE(is_equal(mt::all_gather_tensor(y.tensor, 0, {}), torch::cat({kData, kData, kData})));
    const torch::Tensor chained = mt::all_reduce(mt::all_gather_tensor(sample(rank, {4}), 0, {}), "max", {});
    EXPECT_TRUE(is_equal(chained, torch::cat(samples(3, {4}))));
  });
}

TEST(Pending, UnusedResultsMayBeDropped) {
  on_ranks(4, [](int rank) {
    for (int round = 0; round < 20; ++round) {
      mt::all_reduce(torch::ones({20000}), "sum", {});
      mt::all_gather_tensor(torch::ones({5000}), 0, {});
      mt::reduce_scatter_tensor(torch::ones({20001}), "sum", 0, {});
      mt::all_to_all_single(torch::ones({4000}), {}, {}, {});
      mt::broadcast(torch::ones({20000}), 1, {});
      mt::all_reduce_coalesced({torch::ones({3}), torch::ones({20000})}, "sum", {});
      mt::permute_tensor(torch::ones({3000}), {{0, 1}, {1, 2}, {2, 3}, {3, 0}}, {});
    }
    EXPECT_TRUE(is_equal(mt::all_reduce(torch::full({2}, rank), "sum", {}), torch::full({2}, 6)));
  });
}

TEST(Pending, ManyResultsMayBeUnderWayAtOnce) {
  on_ranks(3, [](int rank) {
    std::vector<torch::Tensor> results;
    for (int i = 0; i < 40; ++i) results.push_back(mt::all_reduce(torch::full({1000}, rank + i), "sum", {}));
    for (int i = 39; i >= 0; --i)
      EXPECT_TRUE(is_equal(results[static_cast<std::size_t>(i)], torch::full({1000}, 3 + 3 * i)));
  });
}

// To look at the memory of such a tensor is to wait for it, inside of an observer of the call that waits.
TEST(Pending, MeasuringMemoryDoesNotWait) {
  bool is_there = false;
  const at::Tensor pending = make_pending({1000}, at::kFloat, [&] {
    is_there = true;
    return torch::ones({1000});
  });
  const mt::KeptMemory kept;
  EXPECT_EQ(kept.bytes(), 0);
  const torch::Tensor part = pending.narrow(0, 0, 10);
  EXPECT_EQ(part.sum().item<float>(), 10);
  EXPECT_TRUE(is_there);
  EXPECT_EQ(kept.bytes(), 4000);
}

}  // namespace
}  // namespace meshtorch::testing

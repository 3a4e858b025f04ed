// Results of real work that is under way or fails: two gloo ranks in one process, of which one comes late or
// never.
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <future>

#include "comm/backend.h"
#include "comm/rank_context.h"
#include "ranks.h"

namespace meshtorch::testing {
using namespace internal;
namespace {

// The two ends of a gloo group of two ranks.
struct GlooPair {
  c10::intrusive_ptr<c10d::ProcessGroup> first;
  c10::intrusive_ptr<c10d::ProcessGroup> second;

  GlooPair() {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    const auto join = [&](int rank) {
      return make_process_group({"gloo", rank, 2, rank, std::chrono::minutes(1), store, nullptr}, {0, 1},
                                rank);
    };
    auto other = std::async(std::launch::async, join, 1);
    first = join(0);
    second = other.get();
  }
};

TEST(PendingGloo, AResultIsPendingUntilTheOtherRankComes) {
  const GlooPair pair;
  const torch::Tensor x = mt::all_reduce(torch::ones({3}), "sum", pair.first);
  const torch::Tensor y = mt::all_gather_tensor(torch::zeros({1}), 0, pair.first);
  EXPECT_TRUE(mt::is_pending(x));
  EXPECT_TRUE(mt::is_pending(y));
  EXPECT_EQ(y.sizes(), at::IntArrayRef({2}));
  auto other = std::async(std::launch::async, [&] {
    mt::wait_tensor(mt::all_reduce(torch::full({3}, 4.0F), "sum", pair.second));
    mt::wait_tensor(mt::all_gather_tensor(torch::ones({1}), 0, pair.second));
  });
  EXPECT_TRUE(is_equal(x, torch::full({3}, 5.0F)));
  EXPECT_TRUE(is_equal(y, torch::tensor({0.0F, 1.0F})));
  EXPECT_FALSE(mt::is_pending(x));
  other.get();
}

TEST(PendingGloo, ADroppedResultKeepsItsBuffersUntilTheWorkIsDone) {
  const GlooPair pair;
  for (int i = 0; i < 10; ++i) {
    mt::all_reduce(torch::ones({100000}), "sum", pair.first);
    mt::all_gather_tensor(torch::ones({100000}), 0, pair.first);
    mt::reduce_scatter_tensor(torch::ones({100001}), "sum", 0, pair.first);
    mt::all_to_all_single(torch::ones({100000}), {}, {}, pair.first);
  }
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(mt::all_reduce(torch::ones({100000}), "sum", pair.second).sum().item<float>(), 200000);
    EXPECT_EQ(mt::all_gather_tensor(torch::ones({100000}), 0, pair.second).sum().item<float>(), 200000);
    EXPECT_EQ(mt::reduce_scatter_tensor(torch::ones({100001}), "sum", 0, pair.second).sum().item<float>(),
              100000);
    EXPECT_EQ(mt::all_to_all_single(torch::ones({100000}), {}, {}, pair.second).sum().item<float>(), 100000);
  }
}

TEST(PendingGloo, WorkThatFailsThrowsAtEveryUse) {
  const GlooPair pair;
  pair.first->getBackend(torch::kCPU)->setTimeout(std::chrono::milliseconds(200));
  const torch::Tensor x = mt::all_reduce(torch::ones({3}), "sum", pair.first);
  const std::string error = error_of([&] { x + 1; });
  EXPECT_NE(error.find("did not complete in 200 ms"), std::string::npos) << error;
  EXPECT_NE(error.find("rank 1: has called nothing in this group"), std::string::npos) << error;
  EXPECT_EQ(error_of([&] { x.data_ptr(); }), error);
  EXPECT_EQ(error_of([&] { mt::wait_tensor(x); }), error);
}

}  // namespace
}  // namespace meshtorch::testing

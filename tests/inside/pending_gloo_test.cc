// Results of real work that is under way or fails: two gloo ranks in one process, of which one comes late or
// never.
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <future>

#include "backends/backend.h"
#include "ranks.h"
#include "world/rank_context.h"

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

// Both ends call from one line, as ranks do.
torch::Tensor sum(const torch::Tensor& tensor, const mt::Group& group) {
  return mt::all_reduce(tensor, "sum", group);
}
torch::Tensor gathered(const torch::Tensor& tensor, const mt::Group& group) {
  return mt::all_gather_tensor(tensor, 0, group);
}

TEST(PendingGloo, AResultIsPendingUntilTheOtherRankComes) {
  const GlooPair pair;
  const torch::Tensor x = sum(torch::ones({3}), pair.first);
  const torch::Tensor y = gathered(torch::zeros({1}), pair.first);
  EXPECT_TRUE(mt::is_pending(x));
  EXPECT_TRUE(mt::is_pending(y));
  EXPECT_EQ(y.sizes(), at::IntArrayRef({2}));
  auto other = std::async(std::launch::async, [&] {
    mt::wait_tensor(sum(torch::full({3}, 4.0F), pair.second));
    mt::wait_tensor(gathered(torch::ones({1}), pair.second));
  });
  EXPECT_TRUE(is_equal(x, torch::full({3}, 5.0F)));
  EXPECT_TRUE(is_equal(y, torch::tensor({0.0F, 1.0F})));
  EXPECT_FALSE(mt::is_pending(x));
  other.get();
}

TEST(PendingGloo, ADroppedResultKeepsItsBuffersUntilTheWorkIsDone) {
  const GlooPair pair;
  const auto call_each = [](const mt::Group& group) {
    const torch::Tensor ones = torch::ones({100000});
    return mt::Tensors{sum(ones, group), gathered(ones, group),
                       mt::reduce_scatter_tensor(torch::ones({100001}), "sum", 0, group),
                       mt::all_to_all_single(ones, {}, {}, group)};
  };
  for (int i = 0; i < 10; ++i) call_each(pair.first);
  for (int i = 0; i < 10; ++i) {
    const mt::Tensors results = call_each(pair.second);
    EXPECT_EQ(results[0].sum().item<float>(), 200000);
    EXPECT_EQ(results[1].sum().item<float>(), 200000);
    EXPECT_EQ(results[2].sum().item<float>(), 100000);
    EXPECT_EQ(results[3].sum().item<float>(), 100000);
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

// The memory of large results is used again.
#include "kernels/result_memory.h"

#include <meshtorch/memory.h>

#include "ranks.h"

namespace meshtorch::testing {
using namespace internal;
namespace {

TEST(ResultMemory, OfLargeResultsIsUsedAgain) {
  on_ranks(1, [](int) {
    const torch::Tensor input = torch::ones({1 << 20});
    const auto reduced = [&] { return mt::wait_tensor(mt::all_reduce(input, mt::ReduceOp::sum, {})); };
    torch::Tensor first = reduced();
    const void* place = first.const_data_ptr();
    const torch::Tensor second = reduced();
    EXPECT_NE(second.const_data_ptr(), place) << "it was still in use";
    first.reset();
    EXPECT_GE(kept_result_bytes(), input.nbytes());
    const torch::Tensor third = reduced();
    EXPECT_EQ(third.const_data_ptr(), place);
    EXPECT_TRUE(is_equal(third, input));
  });
}

TEST(ResultMemory, IsKeptUpToALimit) {
  on_ranks(1, [](int) {
    std::vector<torch::Tensor> results;
    const torch::Tensor input = torch::ones({24 << 20}, torch::kByte);
    for (int i = 0; i < 12; ++i)
      results.push_back(mt::wait_tensor(mt::all_reduce(input, mt::ReduceOp::sum, {})));
    results.clear();
    EXPECT_GT(kept_result_bytes(), kMaxKeptBytes / 2);
    EXPECT_LE(kept_result_bytes(), kMaxKeptBytes);
  });
}

TEST(ResultMemory, IsSeenByObserversAndCanGrow) {
  on_ranks(1, [](int) {
    const torch::Tensor input = torch::ones({1 << 20});
    mt::KeptMemory kept;
    mt::PeakMemory peak;
    const int64_t before = peak.bytes();
    torch::Tensor result = mt::wait_tensor(mt::all_reduce(input, mt::ReduceOp::sum, {}));
    EXPECT_EQ(kept.bytes(), static_cast<int64_t>(input.nbytes()));
    EXPECT_EQ(peak.bytes() - before, static_cast<int64_t>(input.nbytes()));
    result.resize_({1 << 21});
    EXPECT_TRUE(is_equal(result.narrow(0, 0, 1 << 20), input));
  });
}

}  // namespace
}  // namespace meshtorch::testing

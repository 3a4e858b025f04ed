// What a rank holds while attention runs on a split sequence, and how equal the work of the ranks is.
#include <meshtorch/context_parallel.h>
#include <meshtorch/memory.h>

#include <atomic>

#include "decompose/attention_tiles.h"
#include "decompose/sequence_order.h"
#include "numbers.h"

namespace meshtorch::testing {
using namespace internal;
namespace {

constexpr int64_t kRowsOfARank = 256;

// The most that forward and backward of one rank allocate, over n ranks that have equally many rows each.
int64_t peak_over(int n, mt::RotateMethod method) {
  std::atomic<int64_t> highest = 0;
  on_ranks(n, [&](int rank) {
    mt::set_rotate_method(method);
    const mt::DeviceMesh mesh = line(n);
    std::vector<torch::Tensor> in;
    for (int i = 0; i < 3; ++i)
      in.push_back(mt::DTensor::from_local(numbers({1, 4, kRowsOfARank, 32}, torch::kFloat, rank + i), mesh,
                                           {mt::Shard(2)})
                       .detach()
                       .requires_grad_());
    const mt::DTensor ones = mt::ones(in[0].sizes().vec(), mesh, {mt::Shard(2)});
    const mt::PeakMemory peak;
    torch::scaled_dot_product_attention(in[0], in[1], in[2]).backward(ones);
    int64_t seen = highest;
    while (seen < peak.bytes() && !highest.compare_exchange_weak(seen, peak.bytes())) continue;
    mt::set_rotate_method(mt::RotateMethod::automatic);
  });
  return highest;
}

// Twice the tokens on twice the ranks. With two ranks no block is passed on while another comes.
TEST(ContextParallelMemory, OfARingGrowsWithTheRowsOfARankOnly) {
  if (ranks_are_processes()) GTEST_SKIP() << "the peaks of all ranks are compared in one process";
  const auto growth = [](mt::RotateMethod method) {
    return static_cast<double>(peak_over(6, method)) / static_cast<double>(peak_over(3, method));
  };
  EXPECT_LT(growth(mt::RotateMethod::ring), 1.05);
  EXPECT_GT(growth(mt::RotateMethod::allgather), 1.3);
}

// The products of a query and a key that a rank computes.
int64_t products_of(const std::vector<AttentionTile>& tiles) {
  int64_t sum = 0;
  for (const AttentionTile& tile : tiles) {
    const int64_t both = std::min(tile.queries.size, tile.keys.size);
    const int64_t hidden = both * (both - 1) / 2 + (tile.keys.size - both) * tile.queries.size;
    sum += tile.queries.size * tile.keys.size - (tile.is_causal ? hidden : 0);
  }
  return sum;
}

TEST(ContextParallelMemory, ABalancedCausalSequenceIsEqualWork) {
  constexpr int64_t kTokens = 16384;
  for (const int64_t n : {2, 4, 8}) {
    int64_t least = kTokens * kTokens;
    int64_t most = 0;
    const SequenceOrder order{2 * n};
    const std::vector<Range> keys = order.positions({{0, kTokens}}, kTokens);
    for (int64_t rank = 0; rank < n; ++rank) {
      const auto queries = order.positions({{rank * (kTokens / n), kTokens / n}}, kTokens);
      const int64_t work = products_of(attention_tiles(queries, keys, /*is_causal=*/true));
      least = std::min(least, work);
      most = std::max(most, work);
    }
    EXPECT_EQ(least, most) << n << " ranks";
  }
}

}  // namespace
}  // namespace meshtorch::testing

// Messages that are posted: a rank goes on before its peer has come, and both agree when they use them.
#include <meshtorch/collectives.h>

#include <atomic>
#include <thread>

#include "collectives/peer_exchange.h"
#include "rank_data.h"

namespace meshtorch::testing {
using namespace internal;
namespace {

// Gives the neighbour after in a ring this rank's number and gets that of the one before, with `rows` rows.
SentAndReceived posted(const Group& group, int64_t rows, int64_t expected) {
  const int n = group.size();
  const int rank = group.rank();
  return exchange_with_peers({{sample(rank, {rows, 2}), (rank + 1) % n}},
                             {{{expected, 2}, torch::kFloat, (rank + n - 1) % n}}, group, Meet::when_used);
}

torch::Tensor arrived(const SentAndReceived& messages) {
  mt::wait_tensor(messages.sent);
  return mt::wait_tensor(messages.received[0]);
}

class PostedMessages : public OnRanks {};
INSTANTIATE_TEST_SUITE_P(On, PostedMessages, ::testing::Range(2, 5), ranks_in_name);

TEST_P(PostedMessages, ARankGoesOnWhileItsPeersHaveNotCome) {
  if (ranks_are_processes()) GTEST_SKIP() << "the ranks tell one another through memory of one process";
  std::atomic<int> gone_on = 0;
  on_all([&](int rank, int n) {
    const Group group;
    // Peers meet once for each of the two places of memory.
    for (int i = 0; i < 2; ++i) arrived(posted(group, 3, 3));
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (rank == n - 1 && gone_on < n - 1 && std::chrono::steady_clock::now() < limit)
      std::this_thread::yield();
    const SentAndReceived messages = posted(group, 3, 3);
    if (rank == n - 1) {
      EXPECT_EQ(gone_on, n - 1) << "a rank waited for this one";
    }
    ++gone_on;
    EXPECT_TRUE(is_equal(arrived(messages), sample((rank + n - 1) % n, {3, 2})));
  });
}

TEST_P(PostedMessages, OfAnySizeArriveInTheirOrder) {
  on_all([](int rank, int n) {
    const Group group;
    const int before = (rank + n - 1) % n;
    const auto rows = [](int r, int i) { return static_cast<int64_t>((r * 5 + i * 7) % 11 * (i % 3)); };
    std::optional<SentAndReceived> last;
    for (int i = 0; i < 12; ++i) {
      auto messages = posted(group, rows(rank, i), rows(before, i));
      if (last) {
        EXPECT_TRUE(is_equal(arrived(*last), sample(before, {rows(before, i - 1), 2}))) << i;
      }
      last = std::move(messages);
    }
    arrived(*last);
  });
}

TEST(PostedMessagesThatDiffer, AreAnErrorOnBothRanks) {
  on_ranks(2, [](int rank) {
    const Group group;
    const std::string error = error_of([&] { arrived(posted(group, 3, rank == 0 ? 3 : 4)); });
    EXPECT_NE(error.find("recv(Float[4, 2]) from rank 0"), std::string::npos) << error;
    EXPECT_NE(error.find("recv(Float[3, 2]) from rank 1"), std::string::npos) << error;
  });
}

}  // namespace
}  // namespace meshtorch::testing

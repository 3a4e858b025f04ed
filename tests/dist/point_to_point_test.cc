// Send and recv: single, batched, with gradients, counted, and found when they do not match.
#include <meshtorch/point_to_point.h>

#include "rank_data.h"

namespace meshtorch::testing {
namespace {

TEST(PointToPoint, EveryTypeArrives) {
  on_ranks(2, [](int rank) {
    for (const at::ScalarType type : all_types()) {
      for (const std::vector<int64_t>& shape : {std::vector<int64_t>{2, 3}, {}, {0, 2}}) {
        if (rank == 0) {
          mt::send(sample(7, shape, type), 1);
        } else {
          EXPECT_TRUE(is_equal(mt::recv(shape, type, 0), sample(7, shape, type))) << type;
        }
      }
    }
    // Any strides, and what is sent may be changed afterwards.
    if (rank == 1) {
      torch::Tensor turned = sample(3, {3, 4}).t();
      const torch::Tensor expected = turned.clone();
      mt::wait_tensor(mt::send(turned, 0));
      turned.zero_();
    } else {
      EXPECT_TRUE(is_equal(mt::recv({4, 3}, torch::kFloat, 1), sample(3, {3, 4}).t()));
    }
  });
}

TEST(PointToPoint, RanksAreThoseOfTheGroupAndOthersNeedNotCome) {
  on_ranks(4, [](int rank) {
    if (rank == 0 || rank == 2) return;
    const mt::Group group({3, 1});
    if (rank == 3) mt::send(sample(3, {5}), /*to=*/1, group);
    if (rank == 1) {
      EXPECT_TRUE(is_equal(mt::recv({5}, torch::kFloat, /*from=*/0, group), sample(3, {5})));
    }
  });
}

class PointToPointRing : public OnRanks {};
INSTANTIATE_TEST_SUITE_P(On, PointToPointRing, ::testing::Range(2, 5), ranks_in_name);

TEST_P(PointToPointRing, ABatchTurnsARing) {
  on_all([](int rank, int n) {
    const int next = (rank + 1) % n;
    const int before = (rank + n - 1) % n;
    torch::Tensor block = sample(rank, {3, rank + 1});  // of another shape on each rank
    for (int step = 1; step < n; ++step) {
      const int comes_from = (rank + n - step) % n;
      block =
          mt::batch_send_recv({{block, next}}, {{{3, comes_from + 1}, torch::kFloat, before}}).received[0];
      EXPECT_TRUE(is_equal(block, sample(comes_from, {3, comes_from + 1})));
    }
  });
}

TEST_P(PointToPointRing, GradientsTurnTheOtherWay) {
  on_all([](int rank, int n) {
    const int next = (rank + 1) % n;
    const int before = (rank + n - 1) % n;
    const torch::Tensor x = sample(rank, {4}, torch::kDouble).requires_grad_();
    const auto moved = mt::batch_send_recv(
        {{x * 2, next}}, {{{4}, torch::TensorOptions(torch::kDouble).requires_grad(true), before}});
    const torch::Tensor weights = sample(rank, {4}, torch::kDouble, 5);
    (moved.received[0] * weights).sum().backward();
    EXPECT_TRUE(is_equal(x.grad(), 2 * sample(next, {4}, torch::kDouble, 5)));
  });
}

TEST(PointToPoint, TwoStagesTrainAsOne) {
  on_ranks(2, [](int rank) {
    const torch::Tensor x = sample(0, {3, 4}, torch::kDouble);
    const torch::Tensor w1 = sample(1, {4, 5}, torch::kDouble).requires_grad_();
    const torch::Tensor w2 = sample(2, {5, 2}, torch::kDouble).requires_grad_();
    torch::tanh(x.mm(w1)).mm(w2).square().sum().backward();
    const torch::Tensor mine = (rank == 0 ? w1 : w2).detach().clone().requires_grad_();
    if (rank == 0) {
      mt::send(torch::tanh(x.mm(mine)), 1).backward();
    } else {
      const torch::Tensor hidden =
          mt::recv({3, 5}, torch::TensorOptions(torch::kDouble).requires_grad(true), 0);
      hidden.mm(mine).square().sum().backward();
    }
    EXPECT_TRUE(is_close(mine.grad(), (rank == 0 ? w1 : w2).grad(), 1e-12));
  });
}

TEST(PointToPoint, MessagesAreCounted) {
  on_ranks(2, [](int rank) {
    const mt::CommDebugMode comm;
    if (rank == 0) mt::wait_tensor(mt::send(torch::ones({6}), 1));
    if (rank == 1) mt::wait_tensor(mt::recv({6}, torch::kFloat, 0));
    const auto& counts = comm.get_comm_counts();
    EXPECT_EQ(counts[mt::Collective::send], rank == 0 ? 1 : 0);
    EXPECT_EQ(counts[mt::Collective::recv], rank == 1 ? 1 : 0);
    EXPECT_EQ(counts.total(), 1);
    if (rank == 0) {
      EXPECT_EQ(counts.statistics().at(mt::Collective::send).bytes_sent, 24);
    }
  });
}

TEST(PointToPoint, RanksThatDisagreeSayWhatEachCalled) {
  on_ranks(2, [](int rank) {
    const auto both = [&](const std::function<void()>& first, const std::function<void()>& second) {
      return error_of([&] { rank == 0 ? first() : second(); });
    };
    EXPECT_NE(both([] { mt::wait_tensor(mt::send(torch::ones({6}), 1)); },
                   [] { mt::wait_tensor(mt::recv({2, 3}, torch::kFloat, 0)); })
                  .find("\n  rank 0: send(Float[6]) to rank 1\n  rank 1: recv(Float[2, 3]) from rank 0"),
              std::string::npos);
    EXPECT_NE(both([] { mt::wait_tensor(mt::send(torch::ones({6}), 1)); },
                   [] { mt::wait_tensor(mt::send(torch::ones({6}), 0)); })
                  .find("\n  rank 0: send(Float[6]) to rank 1\n  rank 1: send(Float[6]) to rank 0"),
              std::string::npos);
    EXPECT_NE(both([] { mt::wait_tensor(mt::send(torch::ones({6}), 1, {}, 3)); },
                   [] { mt::wait_tensor(mt::recv({6}, torch::kFloat, 0, {}, 4)); })
                  .find("Float[6], tag 3) to rank 1\n  rank 1: recv(Float[6], tag 4) from rank 0"),
              std::string::npos);
    EXPECT_NE(both([] { mt::wait_tensor(mt::send(torch::ones({6}).requires_grad_(), 1)); },
                   [] { mt::wait_tensor(mt::recv({6}, torch::kFloat, 0)); })
                  .find("send(Float[6], requires_grad) to rank 1\n  rank 1: recv(Float[6]) from rank 0"),
              std::string::npos);
    // They can go on.
    if (rank == 0) mt::send(torch::ones({2}), 1);
    if (rank == 1) {
      EXPECT_TRUE(is_equal(mt::recv({2}, torch::kFloat, 0), torch::ones({2})));
    }
  });
}

TEST(PointToPoint, ASendWithoutItsRecvIsNamed) {
  if (ranks_are_processes()) GTEST_SKIP() << "the rank that returns would end the world of the others";
  std::string error;
  mt::spawn(2, [&](int rank) {
    if (rank == 0) error = error_of([] { mt::send(torch::ones({3}), 1); });
  });
  EXPECT_NE(error.find("rank 1 has already returned"), std::string::npos) << error;
  EXPECT_NE(error.find("send(Float[3]) to rank 1"), std::string::npos) << error;
}

TEST(PointToPoint, AWrongPeerIsRefused) {
  on_ranks(2, [](int rank) {
    EXPECT_EQ(error_of([&] { mt::send(torch::ones({1}), rank); }),
              c10::str("meshtorch: send to rank ", rank, " of a group of 2 ranks, on its rank ", rank,
                       "\n  do: name another rank of the group, from 0 to 1"));
    const mt::DTensor split = mt::zeros({4}, mt::init_device_mesh(torch::kCPU, {2}), {mt::Shard(0)});
    EXPECT_NE(error_of([&] { mt::send(split, 1 - rank); }).find("send got a distributed tensor of shape [4]"),
              std::string::npos);
    EXPECT_NE(error_of([&] { mt::recv({1}, torch::kFloat, 2); }).find("recv from rank 2"), std::string::npos);
  });
}

}  // namespace
}  // namespace meshtorch::testing

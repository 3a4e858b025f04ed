// Values that plain LibTorch refuses are refused on distributed tensors, on every rank.
#include "numbers.h"

namespace meshtorch::testing {
namespace {

using mt::Replicate;
using mt::Shard;

torch::Tensor on_two_ranks(const torch::Tensor& whole, const mt::Placement& p) {
  return mt::distribute_tensor(whole, line(2), {p});
}

void expect_refusal(const std::string& words, const std::function<void()>& call) {
  const std::string error = error_of(call);
  EXPECT_NE(error.find(words), std::string::npos) << error;
  EXPECT_NE(error.find("\n  do: "), std::string::npos) << error;
}

TEST(RefusedValues, IdsThatAreNotInATableSplitByRows) {
  on_ranks(2, [](int) {
    const torch::Tensor table = on_two_ranks(numbers({5, 3}), Shard(0));
    const torch::Tensor good = on_two_ranks(torch::tensor({0, 4}), Replicate());
    for (int repeat = 0; repeat < 2; ++repeat) {
      EXPECT_EQ(torch::embedding(table, good).size(0), 2);
      for (const int64_t id : {-1, 5, 1000}) {
        const torch::Tensor bad = on_two_ranks(torch::tensor({int64_t{0}, id}), Replicate());
        expect_refusal("index out of range", [&] { torch::embedding(table, bad); });
      }
    }
  });
}

TEST(RefusedValues, IntegersThatTheTypeDoesNotHold) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = line(2);
    const auto draw = [&](int64_t low, int64_t high, torch::ScalarType type) {
      return mt::randint(low, high, {6}, mesh, {Shard(0)}, type);
    };
    expect_refusal("type Char does not hold the integers from 0 to 999",
                   [&] { draw(0, 1000, torch::kChar); });
    expect_refusal("type Byte does not hold the integers from -1 to 0", [&] { draw(-1, 1, torch::kByte); });
    expect_refusal("type Half does not hold", [&] { draw(0, 100000, torch::kHalf); });
    expect_refusal("type Bool does not hold", [&] { draw(0, 3, torch::kBool); });
    EXPECT_EQ(draw(-128, 128, torch::kChar).size(0), 6);
    EXPECT_EQ(draw(0, 2, torch::kBool).size(0), 6);
    torch::Tensor x = mt::zeros({6}, mesh, {Shard(0)}, torch::kChar);
    expect_refusal("type Char does not hold", [&] { x.random_(0, 1000); });
    expect_refusal("type Char does not hold", [&] { torch::randint_like(x, 1000); });
    expect_refusal("type Char does not hold", [&] { x.random_(-1000, std::optional<int64_t>()); });
  });
}

TEST(RefusedValues, ProbabilitiesAboveOneOnOneRankOnly) {
  on_ranks(2, [](int) {
    for (const mt::Placement& p : {Replicate(), Shard(0)}) {
      const torch::Tensor bad = on_two_ranks(torch::tensor({0.5, 0.5, 7.0}), p);
      torch::Tensor x = on_two_ranks(torch::zeros({3}, torch::kDouble), p);
      expect_refusal("a probability below 0 or above 1", [&] { torch::bernoulli(bad); });
      expect_refusal("a probability below 0 or above 1", [&] { torch::bernoulli(-bad); });
      expect_refusal("a probability below 0 or above 1", [&] { x.bernoulli_(bad); });
      EXPECT_EQ(torch::bernoulli(on_two_ranks(torch::tensor({0.0, 0.5, 1.0}), p)).size(0), 3);
    }
  });
}

TEST(RefusedValues, DimsThatNoTensorHas) {
  EXPECT_THROW(mt::Shard(int64_t{1} << 32), std::invalid_argument);
  EXPECT_THROW(mt::Shard(-(int64_t{1} << 40)), std::invalid_argument);
  EXPECT_THROW(mt::StridedShard(int64_t{1} << 32, 2), std::invalid_argument);
  EXPECT_THROW(mt::StridedShard(0, int64_t{1} << 32), std::invalid_argument);
}

TEST(RefusedValues, PlainTensorsBesideDistributedOnesAlsoWhereNoRuleIsAsked) {
  on_ranks(2, [](int) {
    const torch::Tensor plain = numbers({4, 4});
    const torch::Tensor x = on_two_ranks(plain, Shard(0));
    const auto refused = [](const std::function<void()>& call) {
      expect_refusal("got a plain tensor beside distributed ones", call);
    };
    refused([&] { torch::equal(x, plain); });
    refused([&] { torch::equal(plain, x); });
    refused([&] { torch::allclose(x, plain); });
    refused([&] { torch::dist(x, plain); });
    refused([&] { torch::mse_loss(x, plain); });
    refused([&] { torch::matmul(x, plain); });  // of many: composite operators decompose
    refused([&] { torch::matmul(plain, x); });
    refused([&] { torch::einsum("ij,jk->ik", {x, plain}); });
    refused([&] { torch::nn::functional::linear(x, plain); });
    refused([&] { torch::hstack({x, plain}); });
    refused([&] { torch::where(plain > 0, x, x); });
    refused([&] { x.clone().bernoulli_(plain.abs() / 100); });
    refused([&] {
      torch::Tensor out = torch::empty({4});
      torch::mean_out(out, x, {0});
    });
    // Nothing is read of these but their form.
    EXPECT_TRUE(mt::is_dtensor(x.view_as(plain)) && mt::is_dtensor(x.reshape_as(plain)));
    EXPECT_TRUE(mt::is_dtensor(x.expand_as(plain)) && mt::is_dtensor(x.type_as(plain)));
    EXPECT_EQ(torch::result_type(x, plain.to(torch::kDouble)), torch::kDouble);
    torch::Tensor parameter = torch::zeros({4, 4});
    parameter.set_data(x);
    EXPECT_TRUE(mt::is_dtensor(parameter));
    const mt::implicit_replication scope;
    EXPECT_TRUE(torch::equal(x, plain));
  });
}

TEST(RefusedValues, WhereBagsBeginUnlessTheyAreOfEqualSize) {
  on_ranks(2, [](int) {
    const torch::Tensor table = numbers({7, 4});
    const torch::Tensor ids = torch::tensor({{0, 3, 6}, {1, 1, 2}});
    const torch::Tensor split_table = on_two_ranks(table, Shard(0));
    // The function counts 0, 3 as plain numbers.
    const torch::Tensor bags = torch::nn::functional::embedding_bag(on_two_ranks(ids, Shard(0)), split_table);
    EXPECT_TRUE(is_close(mt::full_tensor(bags), torch::nn::functional::embedding_bag(ids, table)));
    expect_refusal("got a plain tensor beside distributed ones", [&] {
      torch::embedding_bag(split_table, on_two_ranks(ids.flatten(), Replicate()), torch::tensor({0, 2, 5}));
    });
  });
}

}  // namespace
}  // namespace meshtorch::testing

// Values that plain LibTorch refuses are refused on distributed tensors, on every rank.
#include "numbers.h"

namespace meshtorch::testing {
namespace {

using mt::Replicate;
using mt::Shard;

void expect_refusal(const std::string& words, const std::function<void()>& call) {
  const std::string error = error_of(call);
  EXPECT_NE(error.find(words), std::string::npos) << error;
  EXPECT_NE(error.find("\n  do: "), std::string::npos) << error;
}

TEST(RefusedValues, IdsThatAreNotInATableSplitByRows) {
  on_ranks(2, [](int) {
    const torch::Tensor table = split_in_two(numbers({5, 3}), Shard(0));
    const torch::Tensor good = split_in_two(torch::tensor({0, 4}), Replicate());
    for (int repeat = 0; repeat < 2; ++repeat) {
      EXPECT_EQ(torch::embedding(table, good).size(0), 2);
      for (const int64_t id : {-1, 5, 1000}) {
        const torch::Tensor bad = split_in_two(torch::tensor({int64_t{0}, id}), Replicate());
        expect_refusal("index out of range", [&] { torch::embedding(table, bad); });
      }
    }
  });
}

constexpr const char* kOnGloo =
    "on gloo a failed call is compared at the next collective: FailedCalls of tests/events";

// What each step of a program gave on this rank; -1 for a step that ended by an error, whose text is kept.
struct Course {
  std::vector<double> sums;
  std::string told;
  bool is_index_error = false;
};

// Steps that each call an operator and then reduce their own number: sums of different steps are no
// multiples of one number.
Course run_steps(int steps, const std::function<void(int step)>& call,
                 const std::function<torch::Tensor(const torch::Tensor&)>& reduced) {
  Course course;
  for (int step = 0; step < steps; ++step) {
    try {
      call(step);
      course.sums.push_back(reduced(torch::full({1}, std::pow(10, step))).item<double>());
    } catch (const c10::Error& error) {
      course.sums.push_back(-1);
      course.told = error.what_without_backtrace();
      course.is_index_error = dynamic_cast<const c10::IndexError*>(&error) != nullptr;
    }
  }
  return course;
}

torch::Tensor sum_over_all(const torch::Tensor& t) { return mt::wait_tensor(mt::all_reduce(t, "sum", {})); }

using Numbers = std::vector<double>;

// A call of an operator on three ranks with values of which only the last rank has a bad one, or none.
struct PartlyBad {
  const char* name;
  std::function<void(bool is_bad)> call;
};

const std::vector<PartlyBad>& partly_bad_calls() {
  const auto ids = [](bool is_bad, int64_t limit) {
    torch::Tensor whole = torch::zeros({6}, torch::kLong);
    if (is_bad) whole[5] = limit;
    return mt::distribute_tensor(whole, line(3), {Shard(0)});
  };
  const auto whole = [](const torch::Tensor& t) { return mt::distribute_tensor(t, line(3), {Replicate()}); };
  const auto split = [](const torch::Tensor& t) { return mt::distribute_tensor(t, line(3), {Shard(0)}); };
  static const std::vector<PartlyBad> calls{
      {"embedding", [=](bool bad) { torch::embedding(whole(numbers({4, 2})), ids(bad, 4)); }},
      {"index_select", [=](bool bad) { torch::index_select(whole(numbers({4, 2})), 0, ids(bad, 4)); }},
      {"index", [=](bool bad) { whole(numbers({4, 2})).index({ids(bad, 4)}); }},
      {"take", [=](bool bad) { torch::take(whole(numbers({4})), ids(bad, 4)); }},
      {"gather", [=](bool bad) { torch::gather(split(numbers({6, 4})), 1, ids(bad, 4).view({6, 1})); }},
      {"scatter",
       [=](bool bad) { torch::scatter(split(numbers({6, 4})), 1, ids(bad, 4).view({6, 1}), 1.0); }},
      {"nll_loss", [=](bool bad) { torch::nll_loss(split(numbers({6, 4})), ids(bad, 4)); }},
      {"cross_entropy", [=](bool bad) { torch::cross_entropy_loss(split(numbers({6, 4})), ids(bad, 4)); }},
      {"binary_cross_entropy",
       [=](bool bad) {
         torch::Tensor chances = torch::full({6}, 0.5);
         if (bad) chances[5] = 2;
         torch::binary_cross_entropy(split(chances), split(torch::ones({6})), {}, at::Reduction::None);
       }},
  };
  return calls;
}

TEST(RefusedValues, ThatOneRankHasEndTheStepOfEveryRank) {
  if (!ranks_share_memory()) GTEST_SKIP() << kOnGloo;
  on_ranks(3, [](int rank) {
    for (const PartlyBad& one : partly_bad_calls()) {
      SCOPED_TRACE(one.name);
      const Course course = run_steps(4, [&](int step) { one.call(step == 1); }, sum_over_all);
      EXPECT_EQ(course.sums, (Numbers{3, -1, 300, 3000}));
      EXPECT_EQ(course.told.find("a call failed on rank 2 by the data it has there") == std::string::npos,
                rank == 2)
          << course.told;
    }
  });
}

TEST(RefusedValues, OfTargetsThatOneRankHasEndTheStepOfEveryRankWhereClassesAreSplit) {
  if (!ranks_share_memory()) GTEST_SKIP() << kOnGloo;
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    const torch::Tensor logits = mt::distribute_tensor(numbers({4, 4}), mesh, {Shard(0), Shard(1)});
    const auto targets = [&](int64_t last) {
      return mt::distribute_tensor(torch::tensor({int64_t{0}, int64_t{1}, int64_t{2}, last}), mesh,
                                   {Shard(0), Replicate()});
    };
    const auto loss = [&](int step) {
      const mt::loss_parallel scope;
      torch::nn::functional::cross_entropy(logits, targets(step == 1 ? 4 : 3));
    };
    EXPECT_EQ(run_steps(3, loss, sum_over_all).sums, (Numbers{4, -1, 400}));
  });
}

TEST(RefusedValues, ThatOneRankHasAreOneKindOfErrorInTheSameWords) {
  if (!ranks_share_memory()) GTEST_SKIP() << kOnGloo;
  on_ranks(3, [](int rank) {
    const torch::Tensor table = mt::distribute_tensor(numbers({4, 2}), line(3), {Replicate()});
    const torch::Tensor ids = mt::distribute_tensor(torch::tensor({0, 9, 0}), line(3), {Shard(0)});
    const Course course = run_steps(1, [&](int) { torch::embedding(table, ids); }, sum_over_all);
    EXPECT_TRUE(course.is_index_error) << course.told;
    EXPECT_NE(course.told.find("index out of range in self"), std::string::npos) << course.told;
    if (rank == 1) return;
    EXPECT_NE(course.told.find("aten::embedding: "), std::string::npos) << course.told;
    EXPECT_NE(course.told.find("\n  do: "), std::string::npos) << course.told;
  });
}

TEST(RefusedValues, ThatSeveralRanksHaveAreTheErrorOfEach) {
  if (!ranks_share_memory()) GTEST_SKIP() << kOnGloo;
  on_ranks(3, [](int rank) {
    const torch::Tensor table = mt::distribute_tensor(numbers({4, 2}), line(3), {Replicate()});
    const torch::Tensor bad = mt::distribute_tensor(torch::tensor({9, 0, 9}), line(3), {Shard(0)});
    const torch::Tensor all_bad = mt::distribute_tensor(torch::tensor({9, 9, 9}), line(3), {Shard(0)});
    const auto look_up = [&](int step) {
      if (step % 2 == 0) torch::embedding(table, step % 4 == 0 ? bad : all_bad);
    };
    const Course course = run_steps(6, look_up, sum_over_all);
    EXPECT_EQ(course.sums, (Numbers{-1, 30, -1, 3000, -1, 300000})) << "rank " << rank;
  });
}

// Ranks that share no group with the one at fault hear of it from those who do, in whatever order they meet.
TEST(RefusedValues, ThatOneRankHasAreToldAlongEveryAxis) {
  if (!ranks_share_memory()) GTEST_SKIP() << kOnGloo;
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    for (const std::vector<std::string>& order :
         std::vector<std::vector<std::string>>{{"dp", "tp"}, {"tp", "dp"}}) {
      for (int guilty = 0; guilty < 4; ++guilty) {
        const torch::Tensor table = mt::distribute_tensor(numbers({4, 2}), mesh, {Replicate(), Replicate()});
        const auto ids_with_bad_one_on = [&](int rank) {
          torch::Tensor ids = torch::zeros({2, 2}, torch::kLong);
          if (rank >= 0) ids[rank / 2][rank % 2] = 4;
          return mt::distribute_tensor(ids, mesh, {Shard(0), Shard(1)});
        };
        const std::vector<torch::Tensor> batches{ids_with_bad_one_on(-1), ids_with_bad_one_on(guilty),
                                                 ids_with_bad_one_on(guilty), ids_with_bad_one_on(3 - guilty),
                                                 ids_with_bad_one_on(-1)};
        const auto along_both = [&](torch::Tensor t) {
          for (const std::string& axis : order)
            t = mt::wait_tensor(mt::all_reduce(t, "sum", mesh.get_group(axis)));
          return t;
        };
        const auto look_up = [&](int step) {
          torch::embedding(table, batches[static_cast<std::size_t>(step)]);
        };
        const Course course = run_steps(5, look_up, along_both);
        EXPECT_EQ(course.sums, (Numbers{4, -1, -1, -1, 40000})) << order[0] << " first, rank " << guilty;
      }
    }
  });
}

TEST(RefusedValues, ThatOneRankHasAreNoMatterOfRanksOutsideTheMesh) {
  if (!ranks_share_memory()) GTEST_SKIP() << kOnGloo;
  on_ranks(3, [](int rank) {
    const mt::DeviceMesh mesh(torch::kCPU, std::vector<int64_t>{0, 1});
    const torch::Tensor table = mt::distribute_tensor(numbers({4, 2}), mesh, {Replicate()});
    const torch::Tensor bad = mt::distribute_tensor(torch::tensor({0, 9}), mesh, {Shard(0)});
    const auto within_mesh = [&](const torch::Tensor& t) {
      return rank == 2 ? t : mt::wait_tensor(mt::all_reduce(t, "sum", mesh.get_group()));
    };
    const auto look_up = [&](int step) {
      if (step == 0) torch::embedding(table, bad);
    };
    const Course course = run_steps(2, look_up, within_mesh);
    EXPECT_EQ(course.sums, (rank == 2 ? Numbers{1, 10} : Numbers{-1, 20}));
    EXPECT_EQ(sum_over_all(torch::ones({1})).item<double>(), 3);
  });
}

// What was declared in a step that ended is not compared with the next.
TEST(RefusedValues, ThatOneRankHasLeaveNothingToDisagreeOn) {
  if (!ranks_share_memory()) GTEST_SKIP() << kOnGloo;
  on_ranks(2, [](int rank) {
    const torch::Tensor table = split_in_two(numbers({4, 2}), Replicate());
    const torch::Tensor bad = split_in_two(torch::tensor({0, 9}), Shard(0));
    const auto call = [&](int step) {
      mt::DTensor::from_local(torch::ones({2, step + 1}), line(2), {Shard(0)});
      if (step == 1) torch::embedding(table, bad);
      mt::DTensor::from_local(torch::ones({3, step + 1}), line(2), {Shard(0)});
    };
    EXPECT_EQ(run_steps(3, call, sum_over_all).sums, (Numbers{2, -1, 200})) << "rank " << rank;
  });
}

TEST(RefusedValues, ThatOneRankHasEndThreadRanksByTheErrorOfThatRank) {
  const auto body = [](int) {
    const torch::Tensor table = mt::distribute_tensor(numbers({4, 2}), line(3), {Replicate()});
    const torch::Tensor bad = mt::distribute_tensor(torch::tensor({0, 9, 0}), line(3), {Shard(0)});
    torch::embedding(table, bad);
    mt::barrier();
  };
  if (ranks_are_processes()) GTEST_SKIP() << "starts ranks of its own";
  for (int repeat = 0; repeat < 10; ++repeat) {
    try {
      mt::spawn(3, body);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const mt::RankError& error) {
      EXPECT_EQ(error.rank(), 1) << error.what();
    }
  }
}

// Looks ids of a split batch up between two layers, of which the second is gathered ahead.
struct LooksUpImpl : torch::nn::Module {
  LooksUpImpl() : first(3, 3), second(3, 3) {
    register_module("first", first);
    register_module("second", second);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = first(x);
    torch::embedding(table, ids);
    return second(x);
  }
  mt::nn::Linear first, second;
  torch::Tensor table, ids;
};
MESHTORCH_MODULE(LooksUp);

// What was posted ahead of time cannot be left: nobody goes on with the group.
TEST(RefusedValues, ThatOneRankHasWhileALayerIsGatheredAheadEndTheGroupForAll) {
  if (!ranks_share_memory()) GTEST_SKIP() << kOnGloo;
  on_ranks(3, [](int rank) {
    const mt::DeviceMesh mesh(torch::kCPU, std::vector<int64_t>{0, 2});
    if (rank == 1) return;
    LooksUp module;
    mt::fully_shard(*module->first, mesh);
    mt::fully_shard(*module->second, mesh);
    mt::fully_shard(*module, mesh);
    module->table = mt::distribute_tensor(numbers({4, 2}), mesh, {Replicate()});
    const auto step = [&](int64_t last_id) {
      module->ids = mt::distribute_tensor(torch::tensor({int64_t{0}, last_id}), mesh, {Shard(0)});
      module(torch::ones({2, 3})).sum().backward();
    };
    step(0);  // so that it is known what comes next
    const std::string error = error_of([&] { step(4); });
    const char* expected =
        rank == 2 ? "index out of range" : "a call failed on rank 2 by the data it has there";
    EXPECT_NE(error.find(expected), std::string::npos) << error;
    const std::string later =
        error_of([&] { mt::wait_tensor(mt::all_reduce(torch::ones({1}), "sum", mesh)); });
    EXPECT_NE(later.find("cannot be used any more"), std::string::npos) << later;
  });
}

// A kernel looks at the type of elements where there are some only.
TEST(RefusedValues, TypesThatAnOperatorDoesNotHaveAlsoOnRanksWithoutElements) {
  on_ranks(3, [](int) {
    for (const bool in_place : {false, true}) {
      torch::Tensor flags = mt::distribute_tensor(torch::ones({2, 3}, torch::kBool), line(3), {Shard(0)});
      EXPECT_THROW(in_place ? flags.abs_() : flags.abs(), c10::NotImplementedError);
      torch::Tensor counts = mt::distribute_tensor(torch::ones({2, 3}, torch::kLong), line(3), {Shard(0)});
      EXPECT_EQ(counts.abs().sum().item<int64_t>(), 6);
    }
  });
}

TEST(RefusedValues, WritesToWhatExpandRepeatsAlsoOnRanksWithoutElements) {
  on_ranks(3, [](int) {
    const torch::Tensor x = mt::distribute_tensor(numbers({2, 1}), line(3), {Shard(0)});  // rank 2 has none
    const torch::Tensor repeated = x.expand({2, 4});
    const torch::Tensor other = mt::distribute_tensor(numbers({2, 4}), line(3), {Shard(0)});
    const std::vector<std::function<void()>> writes{[&] { repeated.add_(1); }, [&] { repeated.mul_(other); },
                                                    [&] { repeated.copy_(other); }, [&] { repeated.relu_(); },
                                                    [&] { at::_foreach_add_({repeated}, 1); }};
    for (std::size_t i = 0; i < writes.size(); ++i) {
      const std::string error = error_of(writes[i]);
      EXPECT_NE(error.find("refers to a single memory location"), std::string::npos) << i << ": " << error;
    }
    EXPECT_TRUE(torch::equal(mt::full_tensor(x), numbers({2, 1})));
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
      const torch::Tensor bad = split_in_two(torch::tensor({0.5, 0.5, 7.0}), p);
      torch::Tensor x = split_in_two(torch::zeros({3}, torch::kDouble), p);
      expect_refusal("a probability below 0 or above 1", [&] { torch::bernoulli(bad); });
      expect_refusal("a probability below 0 or above 1", [&] { torch::bernoulli(-bad); });
      expect_refusal("a probability below 0 or above 1", [&] { x.bernoulli_(bad); });
      EXPECT_EQ(torch::bernoulli(split_in_two(torch::tensor({0.0, 0.5, 1.0}), p)).size(0), 3);
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
    const torch::Tensor x = split_in_two(plain, Shard(0));
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
    const torch::Tensor split_table = split_in_two(table, Shard(0));
    // The function counts 0, 3 as plain numbers.
    const torch::Tensor bags = torch::nn::functional::embedding_bag(split_in_two(ids, Shard(0)), split_table);
    EXPECT_TRUE(is_close(mt::full_tensor(bags), torch::nn::functional::embedding_bag(ids, table)));
    expect_refusal("got a plain tensor beside distributed ones", [&] {
      torch::embedding_bag(split_table, split_in_two(ids.flatten(), Replicate()), torch::tensor({0, 2, 5}));
    });
  });
}

}  // namespace
}  // namespace meshtorch::testing

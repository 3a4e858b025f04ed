// Redistribution: every pair of placements, forward and backward, against the plain tensor.
#include <regex>

#include "numbers.h"

namespace meshtorch::testing {
namespace {

using mt::Partial;
using mt::Placements;
using mt::Replicate;
using mt::Shard;

struct RedistributeCase {
  std::vector<int64_t> mesh;
  std::vector<std::vector<int64_t>> shapes;
};

int64_t world_of(const RedistributeCase& c) { return c10::multiply_integers(c.mesh); }

// All combinations of R, S(d) and P(sum) on each axis.
std::vector<Placements> all_placements(std::size_t axes, int64_t dims) {
  std::vector<mt::Placement> one{Replicate(), Partial()};
  for (int64_t d = 0; d < dims; ++d) one.push_back(Shard(d));
  std::vector<Placements> all{{}};
  for (std::size_t axis = 0; axis < axes; ++axis) {
    std::vector<Placements> longer;
    for (const Placements& so_far : all) {
      for (const mt::Placement& p : one) {
        longer.push_back(so_far);
        longer.back().push_back(p);
      }
    }
    all = std::move(longer);
  }
  return all;
}

// A term of a sum on this rank: the terms of all ranks of an axis add up to x.
torch::Tensor term(const torch::Tensor& x, int64_t index, int64_t count) {
  const torch::Tensor share = numbers(x.sizes(), x.scalar_type(), index + 1);
  if (index + 1 < count) return share;
  torch::Tensor rest = x.clone();
  for (int64_t i = 0; i + 1 < count; ++i) rest -= numbers(x.sizes(), x.scalar_type(), i + 1);
  return rest;
}

// This rank's shard of x, made without meshtorch.
torch::Tensor shard(torch::Tensor x, const mt::DeviceMesh& mesh, const Placements& placements) {
  for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
    const mt::Placement& p = placements[static_cast<std::size_t>(axis)];
    const int64_t index = mesh.get_local_rank(axis);
    if (p.is_partial()) x = term(x, index, mesh.size(axis));
    if (!p.is_shard()) continue;
    const int64_t step = (x.size(p.dim()) + mesh.size(axis) - 1) / mesh.size(axis);
    const int64_t begin = std::min(index * step, x.size(p.dim()));
    x = x.narrow(p.dim(), begin, std::min(step, x.size(p.dim()) - begin));
  }
  return x.clone(torch::MemoryFormat::Contiguous);
}

bool is_partial(const Placements& placements) {
  return std::any_of(placements.begin(), placements.end(),
                     [](const mt::Placement& p) { return p.is_partial(); });
}

void check_pair(const torch::Tensor& whole, const mt::DeviceMesh& mesh, const Placements& from,
                const Placements& to) {
  const std::string what =
      c10::str(mesh.to_string(), " ", whole.sizes(), ": ", mt::to_string(from), " -> ", mt::to_string(to));
  const torch::Tensor local = shard(whole, mesh, from).requires_grad_();
  const mt::DTensor x = mt::DTensor::from_local(local, mesh, from, {.shape = whole.sizes().vec()});
  const mt::DTensor y = x.redistribute(to);
  ASSERT_EQ(y.placements(), to) << what;
  ASSERT_EQ(y.sizes(), whole.sizes()) << what;
  if (!is_partial(to)) {
    ASSERT_TRUE(is_equal(y.to_local().detach(), shard(whole, mesh, to))) << what;
  }
  ASSERT_TRUE(is_equal(y.full_tensor().detach(), whole)) << what;
  // The gradient of sum(y * c) is c, lying as x does, whole where x is a pending sum.
  const torch::Tensor c = numbers(whole.sizes(), whole.scalar_type(), 9);
  const mt::DTensor weights =
      mt::distribute_tensor(c, mesh, Placements(from.size()), {.src_data_rank = std::nullopt});
  (y.redistribute(Placements(from.size())) * weights).sum().backward();
  Placements back = from;
  for (mt::Placement& p : back) {
    if (p.is_partial()) p = Replicate();
  }
  ASSERT_TRUE(is_equal(local.grad(), shard(c, mesh, back))) << what;
}

class Redistribute : public ::testing::TestWithParam<RedistributeCase> {};

TEST_P(Redistribute, EveryPairOfPlacementsGivesTheTensorAndItsGradient) {
  const RedistributeCase& c = GetParam();
  // Thousands of collectives: on processes a third of the pairs, each pair of kinds still among them.
  const std::size_t stride = ranks_are_processes() ? 3 : 1;
  if (ranks_are_processes() && world_of(c) > 4) GTEST_SKIP() << "needs " << world_of(c) << " processes";
  on_ranks(static_cast<int>(world_of(c)), [&](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, c.mesh);
    for (const auto& shape : c.shapes) {
      const torch::Tensor whole = numbers(shape, torch::kDouble);
      const auto all = all_placements(c.mesh.size(), whole.dim());
      std::size_t pair = 0;
      for (const Placements& from : all) {
        for (const Placements& to : all) {
          if (pair++ % stride != 0) continue;
          check_pair(whole, mesh, from, to);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  });
}

std::string mesh_in_name(const ::testing::TestParamInfo<RedistributeCase>& info) {
  std::string name = "Mesh";
  for (const int64_t extent : info.param.mesh) name += std::to_string(extent) + "x";
  name.back() = '_';
  return name + std::to_string(info.index);
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, Redistribute,
    ::testing::Values(RedistributeCase{{2}, {{}, {4}, {5}, {1}, {4, 6}, {5, 3}, {2, 3, 5}, {0, 3}}},
                      RedistributeCase{{3}, {{}, {6}, {7}, {2}, {6, 3}, {5, 4}, {2, 3, 4}}},
                      RedistributeCase{{2, 2}, {{}, {8}, {7}, {2}, {4, 4}, {5, 3}, {1, 6}}},
                      RedistributeCase{{2, 3}, {{12}, {7}, {4}, {6, 6}, {5, 7}}},
                      RedistributeCase{{2, 2, 2}, {{16}, {11}, {3}, {5, 3}}}),
    mesh_in_name);

TEST(Redistribute, StridedShardsGiveTheTensor) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    const torch::Tensor whole = numbers({8, 3});
    const mt::DTensor x = mt::distribute_tensor(whole, mesh, {mt::StridedShard(0, 2), Shard(0)});
    EXPECT_TRUE(is_equal(x.full_tensor(), whole));
    // The order of tensor parallelism first: rank (dp, tp) holds part dp of part tp.
    const auto at = *mesh.get_coordinate();
    EXPECT_TRUE(is_equal(x.to_local(), whole.narrow(0, at[1] * 4 + at[0] * 2, 2)));
    EXPECT_TRUE(
        is_equal(x.redistribute({Shard(0), Shard(0)}).to_local(), whole.narrow(0, at[0] * 4 + at[1] * 2, 2)));
  });
}

struct Kind {
  Placements from, to;
  std::optional<mt::Collective> collective;
};

TEST(Redistribute, EachChangeIsOneCollectiveOrNone) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2});
    const mt::Placement r = Replicate();
    const mt::Placement p = Partial();
    const std::vector<Kind> kinds{
        {{Shard(0), r}, {r, r}, mt::Collective::all_gather_into_tensor},
        {{Shard(0), Shard(0)}, {r, r}, mt::Collective::all_gather_into_tensor},
        {{Shard(0), Shard(1)}, {r, r}, mt::Collective::all_gather_into_tensor},
        {{Shard(0), r}, {Shard(1), r}, mt::Collective::all_to_all_single},
        {{p, r}, {r, r}, mt::Collective::all_reduce},
        {{p, p}, {r, r}, mt::Collective::all_reduce},
        {{p, r}, {Shard(1), r}, mt::Collective::reduce_scatter_tensor},
        {{p, p}, {Shard(0), Shard(0)}, mt::Collective::reduce_scatter_tensor},
        {{r, r}, {Shard(0), Shard(1)}, std::nullopt},
        {{r, r}, {p, r}, std::nullopt},
    };
    for (const Kind& kind : kinds) {
      const torch::Tensor whole = numbers({6, 5});
      const mt::DTensor x = mt::DTensor::from_local(shard(whole, mesh, kind.from), mesh, kind.from,
                                                    {.shape = whole.sizes().vec()});
      const std::string plan = mt::explain_redistribute(x, kind.to);
      const mt::CommDebugMode comm;
      const mt::DTensor y = x.redistribute(kind.to);
      EXPECT_EQ(comm.get_total_counts(), kind.collective ? 1 : 0) << plan;
      if (kind.collective) {
        EXPECT_EQ(comm.get_comm_counts()[*kind.collective], 1) << plan;
      }
    }
  });
}

// "…: 2 steps, 1 collective, …"
int64_t collectives_in(const std::string& plan) {
  std::smatch match;
  return std::regex_search(plan, match, std::regex("(\\d+) collective")) ? std::stoll(match[1]) : 0;
}

TEST(Redistribute, ExplainSaysHowManyCollectivesThereWillBe) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2});
    const torch::Tensor whole = numbers({5, 3});
    for (const Placements& from : all_placements(2, 2)) {
      const mt::DTensor x =
          mt::DTensor::from_local(shard(whole, mesh, from), mesh, from, {.shape = whole.sizes().vec()});
      for (const Placements& to : all_placements(2, 2)) {
        const std::string plan = mt::explain_redistribute(x, to);
        const mt::CommDebugMode comm;
        x.redistribute(to);
        ASSERT_EQ(comm.get_total_counts(), collectives_in(plan)) << plan;
      }
    }
  });
}

TEST(Redistribute, AnAsynchronousOneIsWaitedForAtFirstUse) {
  on_ranks(2, [](int) {
    const torch::Tensor whole = numbers({6, 4});
    const mt::DTensor x = mt::distribute_tensor(whole, line(2), {Shard(0)});
    const mt::DTensor y = x.redistribute({Replicate()}, {.async_op = true});
    EXPECT_TRUE(is_equal(mt::DTensor(y + 1).to_local(), whole + 1));
    EXPECT_TRUE(is_equal(y.to_local() + 0, whole));
  });
}

TEST(Redistribute, ConvertsBeforeItSends) {
  on_ranks(2, [](int) {
    const torch::Tensor local = numbers({3, 2}).requires_grad_();
    const mt::DTensor x = mt::DTensor::from_local(local, line(2), {Shard(0)});
    const mt::DTensor y =
        x.redistribute({Replicate()}, {.forward_dtype = torch::kBFloat16, .backward_dtype = torch::kHalf});
    EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
    y.sum().backward();
    EXPECT_EQ(local.grad().scalar_type(), torch::kFloat);
  });
}

// Also one that moves nothing: a program that reads the shards of the gradient finds those of the tensor.
TEST(Redistribute, TheGradientComesBackToWhereTheTensorWas) {
  struct Way {
    mt::Placement from, to, gradient, back;
    int64_t collectives;
  };
  const std::vector<Way> ways{
      {Replicate(), Replicate(), Partial(), Replicate(), 1},
      {Replicate(), Replicate(), Shard(0), Replicate(), 1},
      {Shard(0), Shard(0), Partial(), Shard(0), 1},
      {Shard(0), Shard(0), Shard(0), Shard(0), 0},
      {Shard(0), Replicate(), Partial(), Shard(0), 1},
      {Partial(), Partial(), Partial(), Partial(), 0},
      {Partial(), Partial(), Replicate(), Replicate(), 0},
      {Partial(), Replicate(), Partial(), Partial(), 0},
      {Partial(), Shard(0), Shard(0), Replicate(), 1},
  };
  on_ranks(3, [&](int) {
    const mt::DeviceMesh mesh = line(3);
    const torch::Tensor whole = numbers({4, 2}, torch::kDouble);  // uneven
    for (const Way& way : ways) {
      SCOPED_TRACE(way.from.to_string() + " to " + way.to.to_string() + ", gradient " +
                   way.gradient.to_string());
      const torch::Tensor x = mt::distribute_tensor(whole, mesh, {way.from}).requires_grad_();
      const torch::Tensor gradient = mt::distribute_tensor(whole * 3, mesh, {way.gradient});
      const torch::Tensor y = mt::DTensor(x).redistribute({way.to});
      const mt::CommDebugMode comm;
      y.backward(gradient);
      EXPECT_EQ(comm.get_total_counts(), way.collectives) << comm.table();
      EXPECT_EQ(mt::DTensor(x.grad()).placements(), Placements{way.back});
      EXPECT_TRUE(is_close(mt::DTensor(x.grad()).full_tensor(), whole * 3, 1e-12));
    }
  });
}

TEST(Redistribute, WritingToTheResultLeavesTheSourceAlone) {
  on_ranks(2, [](int) {
    const torch::Tensor whole = numbers({4, 2});
    const mt::DTensor x = mt::distribute_tensor(whole, line(2), {Replicate()});
    torch::Tensor y = x.redistribute({Shard(0)});
    y.fill_(7);
    EXPECT_TRUE(is_equal(x.full_tensor(), whole));
  });
}

}  // namespace
}  // namespace meshtorch::testing

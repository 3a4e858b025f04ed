// Redistribution between meshes: other shapes, permuted, overlapping, disjoint, against the plain tensor,
// forward and backward.
#include <meshtorch/between_meshes.h>

#include <map>

#include "numbers.h"

namespace meshtorch::testing {
namespace {

using mt::Partial;
using mt::Placements;
using mt::Replicate;
using mt::Shard;

struct MeshOfRanks {
  std::vector<int64_t> shape;
  std::vector<int64_t> ranks;

  mt::DeviceMesh mesh() const { return {torch::kCPU, torch::tensor(ranks, torch::kLong).view(shape)}; }
};

const std::vector<MeshOfRanks> kMeshesOfRanks{
    {{1}, {2}},       {{2}, {0, 1}},          {{2}, {3, 1}},          {{2}, {2, 3}},
    {{3}, {0, 1, 2}}, {{4}, {0, 1, 2, 3}},    {{4}, {3, 1, 2, 0}},    {{1, 3}, {3, 0, 2}},
    {{2, 1}, {1, 3}}, {{2, 2}, {0, 1, 2, 3}}, {{2, 2}, {3, 1, 0, 2}},
};

std::vector<Placements> placements_for(std::size_t axes) {
  if (axes == 1) return {{Replicate()}, {Shard(0)}, {Shard(1)}, {Partial()}};
  return {{Replicate(), Replicate()}, {Shard(0), Shard(0)},   {Shard(1), Shard(0)},   {Replicate(), Shard(1)},
          {Partial(), Shard(0)},      {Partial(), Partial()}, {Shard(1), Replicate()}};
}

bool has_partial(const Placements& placements) {
  return std::any_of(placements.begin(), placements.end(),
                     [](const mt::Placement& p) { return p.is_partial(); });
}

// This rank's shard of x, made without meshtorch; nothing outside the mesh. The terms of a sum are different.
torch::Tensor shard_on(torch::Tensor x, const mt::DeviceMesh& mesh, const Placements& placements) {
  if (!mesh.get_coordinate()) return torch::empty({0}, x.options());  // as to_local gives it
  for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
    const mt::Placement& p = placements[static_cast<std::size_t>(axis)];
    const int64_t index = mesh.get_local_rank(axis);
    const int64_t n = mesh.size(axis);
    if (p.is_partial())
      x = index + 1 < n ? torch::full_like(x, 2.5 * index) : x - 2.5 * (n - 1) * (n - 2) / 2;
    if (!p.is_shard()) continue;
    const int64_t step = (x.size(p.dim()) + n - 1) / n;
    const int64_t begin = std::min(index * step, x.size(p.dim()));
    x = x.narrow(p.dim(), begin, std::min(step, x.size(p.dim()) - begin));
  }
  return x.clone(torch::MemoryFormat::Contiguous);
}

void check_crossing(const torch::Tensor& whole, const mt::DeviceMesh& a, const Placements& from,
                    const mt::DeviceMesh& b, const Placements& to) {
  const std::string what = c10::str(whole.sizes(), ": ", mt::to_string(from), " on ", a.to_string(), " -> ",
                                    mt::to_string(to), " on ", b.to_string());
  const torch::Tensor local = shard_on(whole, a, from).requires_grad_();
  const mt::DTensor x = mt::DTensor::from_local(local, a, from, {.shape = whole.sizes().vec()});
  const mt::DTensor y = x.redistribute(b, to);
  ASSERT_EQ(y.device_mesh(), b) << what;
  ASSERT_EQ(y.placements(), to) << what;
  ASSERT_EQ(y.sizes(), whole.sizes()) << what;
  if (!has_partial(to)) {
    ASSERT_TRUE(is_equal(y.to_local().detach(), shard_on(whole, b, to))) << what;
  }
  if (b.get_coordinate()) {
    ASSERT_TRUE(is_equal(y.full_tensor().detach(), whole)) << what;
  }
  // The gradient of sum(y * c) is c, lying as x does, whole where x is a pending sum.
  const torch::Tensor c = numbers(whole.sizes(), whole.scalar_type(), 9);
  const mt::DTensor weights =
      mt::distribute_tensor(c, b, Placements(to.size()), {.src_data_rank = std::nullopt});
  (y.redistribute(Placements(to.size())) * weights).sum().backward();
  Placements back = from;
  for (mt::Placement& p : back) p = p.is_partial() ? Replicate() : p;
  if (a.get_coordinate()) {
    ASSERT_TRUE(is_equal(local.grad(), shard_on(c, a, back))) << what;
  }
}

class CrossMesh : public ::testing::TestWithParam<std::size_t> {};

TEST_P(CrossMesh, EveryMeshGivesTheTensorAndItsGradient) {
  const MeshOfRanks& source = kMeshesOfRanks[GetParam()];
  // Thousands of collectives: on processes a part of the pairs.
  const std::size_t stride = ranks_are_processes() ? 5 : 1;
  on_ranks(4, [&](int) {
    const mt::DeviceMesh a = source.mesh();
    std::size_t pair = 0;
    for (const MeshOfRanks& target : kMeshesOfRanks) {
      const mt::DeviceMesh b = target.mesh();
      for (const Placements& from : placements_for(source.shape.size())) {
        for (const Placements& to : placements_for(target.shape.size())) {
          if (pair++ % stride != 0) continue;
          check_crossing(numbers({5, 3}, torch::kDouble), a, from, b, to);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(From, CrossMesh, ::testing::Range(std::size_t{0}, kMeshesOfRanks.size()),
                         [](const ::testing::TestParamInfo<std::size_t>& given) {
                           std::string name = "Ranks";
                           for (const int64_t rank : kMeshesOfRanks[given.param].ranks)
                             name += std::to_string(rank);
                           return name + "Axes" + std::to_string(kMeshesOfRanks[given.param].shape.size());
                         });

TEST(CrossMesh, ScalarsEmptyTensorsAndOtherTypesCross) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh a(torch::kCPU, std::vector<int64_t>{0, 1});
    const mt::DeviceMesh b(torch::kCPU, std::vector<int64_t>{3, 1, 2});
    for (const auto type :
         {torch::kFloat, torch::kBFloat16, torch::kLong, torch::kBool, torch::kComplexFloat}) {
      const torch::Tensor whole = numbers({4, 2}).to(type);
      const mt::DTensor x = mt::distribute_tensor(whole, a, {Shard(0)}, {.src_data_rank = std::nullopt});
      const mt::DTensor y = x.redistribute(b, {Shard(1)});
      if (b.get_coordinate()) {
        EXPECT_TRUE(is_equal(y.full_tensor(), whole)) << type;
      }
    }
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{}, {0, 3}, {1}}) {
      const torch::Tensor whole = numbers(shape);
      const mt::DTensor x = mt::distribute_tensor(whole, a, {Replicate()}, {.src_data_rank = std::nullopt});
      const mt::DTensor y = x.redistribute(b, {Replicate()});
      if (b.get_coordinate()) {
        EXPECT_TRUE(is_equal(y.to_local(), whole));
      }
    }
  });
}

// The bytes that rank r sends, by CommDebugMode.
std::int64_t bytes_sent(const mt::CommDebugMode& comm) {
  const auto& all = comm.get_comm_counts().statistics();
  const auto found = all.find(mt::Collective::all_to_all_single);
  return found == all.end() ? 0 : found->second.bytes_sent;
}

TEST(CrossMesh, OnlyWhatIsLackingIsSent) {
  on_ranks(4, [](int rank) {
    const mt::DeviceMesh left(torch::kCPU, std::vector<int64_t>{0, 1});
    const mt::DeviceMesh right(torch::kCPU, std::vector<int64_t>{2, 3});
    const mt::DeviceMesh all(torch::kCPU, std::vector<int64_t>{0, 1, 2, 3});
    const mt::DeviceMesh turned(torch::kCPU, std::vector<int64_t>{3, 2, 1, 0});
    const mt::DTensor x =
        mt::distribute_tensor(numbers({8, 4}), left, {Shard(0)}, {.src_data_rank = std::nullopt});
    struct Case {
      mt::DeviceMesh mesh;
      Placements to;
      std::vector<std::int64_t> sent;  // elements, by each rank
      int64_t collectives = 1;
    };
    const std::vector<Case> cases{
        {right, {Shard(0)}, {16, 16, 0, 0}},     // halves change place
        {right, {Replicate()}, {32, 32, 0, 0}},  // each half to both
        {all, {Shard(0)}, {8, 16, 0, 0}},  // rank 0 keeps its quarter, rank 1 gets one and has two to give
        {turned, {Shard(0)}, {16, 8, 0, 0}},
        {all, {Replicate()}, {48, 48, 0, 0}},
        {right, {Partial()}, {16, 16, 0, 0}},  // the first rank of a sum gets the value
        {mt::DeviceMesh(torch::kCPU, std::vector<int64_t>{0, 1}, {"again"}), {Shard(0)}, {0, 0, 0, 0}, 0},
    };
    for (const Case& c : cases) {
      const std::string plan = mt::explain_redistribute(x, c.mesh, c.to);
      const mt::CommDebugMode comm;
      const mt::DTensor y = x.redistribute(c.mesh, c.to);
      const bool takes_part = c.mesh.get_coordinate() || left.get_coordinate();
      EXPECT_EQ(bytes_sent(comm), 4 * c.sent[static_cast<std::size_t>(rank)]) << plan;
      EXPECT_EQ(comm.get_total_counts(), takes_part ? c.collectives : 0) << plan;
    }
  });
}

TEST(CrossMesh, RanksOfNeitherMeshNeedNotCome) {
  on_ranks(4, [](int rank) {
    if (rank == 3) return;
    const mt::DeviceMesh a(torch::kCPU, std::vector<int64_t>{0, 1});
    const mt::DeviceMesh b(torch::kCPU, std::vector<int64_t>{2, 1});
    const torch::Tensor whole = numbers({6, 2});
    const mt::DTensor x = mt::distribute_tensor(whole, a, {Shard(0)}, {.src_data_rank = std::nullopt});
    const mt::DTensor y = x.redistribute(b, {Shard(0)});
    if (rank == 2) {
      EXPECT_TRUE(is_equal(y.to_local(), whole.narrow(0, 0, 3)));
    }
  });
}

TEST(CrossMesh, PendingSumsAreReducedWhereItIsCheapest) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh left(torch::kCPU, std::vector<int64_t>{0, 1});
    const mt::DeviceMesh right(torch::kCPU, std::vector<int64_t>{2, 3});
    const torch::Tensor whole = numbers({64, 64});
    const mt::DTensor x = mt::DTensor::from_local(shard_on(whole, left, {Partial()}), left, {Partial()},
                                                  {.shape = whole.sizes().vec()});
    EXPECT_EQ(
        mt::explain_redistribute(x, right, {Shard(0)}),
        "redistribute [P(sum)] -> [S(0)]: 2 steps, 2 collectives, 16.00 KiB sent, 24.00 KiB peak, 21.64 us\n"
        "  #  step                 axes          placements              sent       peak      time\n"
        "  1  reduce_scatter(sum)  0             [P(sum)] -> [S(0)]  8.00 KiB  24.00 KiB  10.82 us\n"
        "  2  all_to_all           mesh to mesh  [S(0)] -> [S(0)]    8.00 KiB  16.00 KiB  10.82 us\n"
        "  from DeviceMesh((2), [0, 1], cpu)\n"
        "  to DeviceMesh((2), [2, 3], cpu)\n");
    const mt::CommDebugMode comm;
    const mt::DecisionLog log;
    x.redistribute(right, {Shard(0)});
    if (left.get_coordinate()) {
      EXPECT_EQ(comm.get_comm_counts()[mt::Collective::reduce_scatter_tensor], 1);
      ASSERT_EQ(log.entries().size(), 2U);
      EXPECT_EQ(log.entries()[1].steps, std::vector<std::string>{"all_to_all between meshes"});
    }
  });
}

TEST(CrossMesh, RanksThatSeeDifferentShapesSaySo) {
  on_ranks(3, [](int rank) {
    const mt::DeviceMesh a(torch::kCPU, std::vector<int64_t>{0, 1});
    const mt::DeviceMesh b(torch::kCPU, std::vector<int64_t>{1, 2});
    const mt::DTensor x = mt::DTensor::from_local(torch::ones({rank == 2 ? 3 : 2, 4}), a, {Shard(0)});
    const std::string error = error_of([&] { x.redistribute(b, {Shard(0)}); });
    EXPECT_EQ(error,
              "meshtorch: redistribute to another mesh: ranks see tensors of different shapes\n"
              "  rank 0: [4, 4]\n  rank 2: [6, 4]\n"
              "  do: give from_local the global shape on every rank, also on those outside its mesh");
  });
}

TEST(CrossMesh, TwoStagesTrainAsOneModel) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh first(torch::kCPU, std::vector<int64_t>{0, 1});
    const mt::DeviceMesh second(torch::kCPU, std::vector<int64_t>{2, 3});
    const torch::Tensor x = numbers({6, 4}, torch::kDouble);
    const torch::Tensor w1 = numbers({4, 8}, torch::kDouble, 1);
    const torch::Tensor w2 = numbers({8, 3}, torch::kDouble, 2);
    const auto leaf = [](const torch::Tensor& t) { return t.clone().requires_grad_(); };
    const torch::Tensor p1 = leaf(w1);
    const torch::Tensor p2 = leaf(w2);
    torch::tanh(x.mm(p1)).mm(p2).square().sum().backward();

    const mt::DistributeOptions own{.src_data_rank = std::nullopt};
    const mt::DTensor d1 = mt::distribute_tensor(leaf(w1), first, {Shard(1)}, own);
    const mt::DTensor d2 = mt::distribute_tensor(leaf(w2), second, {Shard(0)}, own);
    const torch::Tensor hidden = torch::tanh(mt::distribute_tensor(x, first, {Replicate()}, own).mm(d1));
    const mt::DTensor crossed = mt::DTensor(hidden).redistribute(second, {Shard(1)});
    crossed.mm(d2).square().sum().backward();
    if (first.get_coordinate()) {
      EXPECT_TRUE(is_close(mt::full_tensor(d1.grad()), p1.grad(), 1e-12));
    }
    if (second.get_coordinate()) {
      EXPECT_TRUE(is_close(mt::full_tensor(d2.grad()), p2.grad(), 1e-12));
    }
  });
}

TEST(CrossMesh, AModuleMovesWithItsGradients) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh from(torch::kCPU, std::vector<int64_t>{0, 1});
    const mt::DeviceMesh to(torch::kCPU, std::vector<int64_t>{3, 2, 0});
    torch::nn::Linear linear(4, 6);
    const torch::Tensor weight = numbers({6, 4});
    const torch::Tensor gradient = numbers({6, 4}, torch::kFloat, 3);
    {
      const torch::NoGradGuard no_grad;
      linear->weight.copy_(weight);
      linear->bias.zero_();
    }
    linear->weight.mutable_grad() = gradient.clone();
    const std::string plain_error = error_of([&] { mt::move_module(*linear, to); });
    EXPECT_EQ(plain_error,
              "meshtorch: move_module met a plain tensor\n  name: weight, shape [6, 4]\n"
              "  do: call distribute_module first");
    const mt::DistributeOptions own{.src_data_rank = std::nullopt};
    mt::distribute_parameter(linear->weight, from, {Shard(0)}, own);
    mt::distribute_parameter(linear->bias, from, {Replicate()}, own);
    const torch::Tensor same = linear->weight;
    mt::move_module(*linear, to);
    EXPECT_EQ(mt::device_mesh(same), to);
    EXPECT_TRUE(same.is_leaf() && same.requires_grad());
    if (to.get_coordinate()) {
      EXPECT_TRUE(is_equal(mt::full_tensor(same).detach(), weight));
      EXPECT_TRUE(is_equal(mt::full_tensor(same.grad()), gradient));
    }
    mt::move_module(*linear, from, [](const std::string& name, const mt::DTensor&) -> Placements {
      return {name == "weight" ? mt::Placement(Shard(1)) : mt::Placement(Replicate())};
    });
    if (from.get_coordinate()) {
      EXPECT_TRUE(is_equal(mt::full_tensor(linear->weight).detach(), weight));
    }
    EXPECT_EQ(mt::placements(linear->weight), Placements{Shard(1)});
    const std::string axes_error =
        error_of([&] { mt::move_module(*linear, mt::init_device_mesh(torch::kCPU, {2, 2})); });
    EXPECT_NE(axes_error.find("move_module to a mesh of 2 axes from one of 1"), std::string::npos);
  });
}

TEST(CrossMesh, OneRanksDataReachesAnyMesh) {
  on_ranks(4, [](int rank) {
    const mt::DeviceMesh source(torch::kCPU, std::vector<int64_t>{2});
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2});
    const torch::Tensor whole = numbers({5, 4});
    const mt::DTensor x = mt::DTensor::from_local(rank == 2 ? whole : torch::empty({0}), source,
                                                  {Replicate()}, {.shape = whole.sizes().vec()});
    EXPECT_TRUE(is_equal(x.redistribute(mesh, {Shard(0), Shard(1)}).full_tensor(), whole));
  });
}

}  // namespace
}  // namespace meshtorch::testing

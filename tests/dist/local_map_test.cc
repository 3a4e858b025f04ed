// local_map on 2 ranks: functions of plain tensors on the shards of distributed ones.
#include "numbers.h"

namespace meshtorch::testing {
namespace {

using mt::Collective;
using mt::DTensor;
using mt::Partial;
using mt::Placements;
using mt::Replicate;
using mt::Shard;

const Placements kRowWise{Shard(0)};
const Placements kColWise{Shard(1)};
const Placements kReplicate{Replicate()};

bool equal_all_gather(const mt::DeviceMesh& mesh, const torch::Tensor& x, const torch::Tensor& y) {
  const torch::Tensor equal = torch::tensor({torch::equal(x, y)});
  return torch::all(mt::all_gather_tensor(equal, 0, mesh)).item<bool>();
}
torch::Tensor mm_all_gather(const mt::DeviceMesh& mesh, const torch::Tensor& a, const torch::Tensor& b) {
  return mt::wait_tensor(mt::all_gather_tensor(torch::mm(a, b), 0, mesh));
}
torch::Tensor mm_all_reduce(const mt::DeviceMesh& mesh, const torch::Tensor& a, const torch::Tensor& b) {
  return mt::wait_tensor(mt::all_reduce(torch::mm(a, b), "sum", mesh));
}
torch::Tensor mm(const torch::Tensor& a, const torch::Tensor& b) { return torch::mm(a, b); }
torch::Tensor mul(const torch::Tensor& x, double scalar) { return torch::mul(x, scalar); }

TEST(LocalMap, GivesTheProductOfSplitMatrices) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = line(2);
    const torch::Tensor w = numbers({12, 8});
    const torch::Tensor x = numbers({8, 16}, torch::kFloat, 4);
    const DTensor w_split = mt::distribute_tensor(w, mesh, kColWise);
    const DTensor x_split = mt::distribute_tensor(x, mesh, kRowWise);
    const auto product = mt::local_map(
        mm_all_reduce,
        {.out_placements = kReplicate, .in_placements = {{}, kColWise, kRowWise}, .device_mesh = mesh});
    const mt::CommDebugMode comm;
    const DTensor y = product(mesh, w_split, x_split);
    EXPECT_EQ(comm.get_total_counts(), 1);
    EXPECT_EQ(y.placements(), kReplicate);
    EXPECT_TRUE(is_close(y.to_local(), torch::mm(w, x)));
  });
}

TEST(LocalMap, AResultThatIsNoTensorIsGivenAsItIs) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = line(2);
    const DTensor x = mt::distribute_tensor(numbers({8, 8}), mesh, kRowWise);
    const DTensor y = mt::distribute_tensor(numbers({8, 8}, torch::kFloat, 5), mesh, kRowWise);
    const auto equal = mt::local_map(equal_all_gather, {.out_placements = {}});
    const mt::CommDebugMode comm;
    EXPECT_FALSE(equal(mesh, x, y));
    EXPECT_EQ(comm.get_total_counts(), 1);
  });
}

TEST(LocalMap, WithoutADistributedArgumentItIsTheFunctionItself) {
  on_ranks(2, [](int rank) {
    const mt::DeviceMesh mesh = line(2);
    const torch::Tensor x = numbers({2, 4}, torch::kFloat, rank);
    const torch::Tensor w = numbers({4, 4});
    const auto product = mt::local_map(
        mm_all_gather, {.out_placements = kRowWise, .in_placements = {{}, kRowWise, kReplicate}});
    const mt::CommDebugMode comm;
    const torch::Tensor y = product(mesh, x, w);
    EXPECT_EQ(comm.get_total_counts(), 1);
    EXPECT_EQ(comm.get_comm_counts()[Collective::all_gather_into_tensor], 1);
    EXPECT_FALSE(mt::is_dtensor(y));
    EXPECT_TRUE(is_close(y, torch::mm(mt::all_gather_tensor(x, 0, mesh), w)));
  });
}

TEST(LocalMap, InPlacementsAreChecked) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = line(2);
    const torch::Tensor w = numbers({12, 8});
    const torch::Tensor x = numbers({8, 16}, torch::kFloat, 4);
    const torch::Tensor y = torch::mm(w, x);
    const DTensor w_split = mt::distribute_tensor(w, mesh, kRowWise);
    const DTensor x_whole = mt::distribute_tensor(x, mesh, kReplicate);
    const mt::CommDebugMode comm;
    // Without in_placements: no check.
    const DTensor unchecked = mt::local_map(mm, {.out_placements = kRowWise})(w_split, x_whole);
    EXPECT_EQ(unchecked.placements(), kRowWise);
    EXPECT_TRUE(is_close(unchecked.full_tensor(), y));
    // A number takes none.
    const DTensor scaled =
        mt::local_map(mul, {.out_placements = kRowWise, .in_placements = {kRowWise, {}}})(w_split, 3.0);
    EXPECT_TRUE(is_close(scaled.full_tensor(), w * 3));
    const DTensor unscaled =
        mt::local_map(mul, {.out_placements = kReplicate, .in_placements = {kReplicate, {}}})(x_whole, 3.0);
    EXPECT_TRUE(is_close(unscaled.to_local(), x * 3));
    // A plain tensor among distributed ones passes unchecked.
    const DTensor mixed =
        mt::local_map(mm, {.out_placements = kRowWise, .in_placements = {kRowWise, kReplicate}})(w_split, x);
    EXPECT_TRUE(is_close(mixed.full_tensor(), y));
    // A distributed argument without placements, and a number with them, are mistakes.
    EXPECT_THROW(
        mt::local_map(mm, {.out_placements = kRowWise, .in_placements = {kRowWise, {}}})(w_split, x_whole),
        mt::AssertionError);
    EXPECT_THROW(mt::local_map(mul, {.out_placements = kRowWise, .in_placements = {kRowWise, kReplicate}})(
                     w_split, 3.0),
                 mt::AssertionError);
  });
}

TEST(LocalMap, RedistributesInputsOnlyIfAsked) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = line(2);
    const torch::Tensor w = numbers({12, 8});
    const torch::Tensor x = numbers({8, 16}, torch::kFloat, 4);
    const DTensor w_split = mt::distribute_tensor(w, mesh, kRowWise);
    const DTensor x_split = mt::distribute_tensor(x, mesh, kColWise);
    const auto moving = mt::local_map(mm_all_reduce, {.out_placements = kReplicate,
                                                      .in_placements = {{}, kColWise, kRowWise},
                                                      .device_mesh = mesh,
                                                      .redistribute_inputs = true});
    const mt::CommDebugMode comm;
    const DTensor y = moving(mesh, w_split, x_split);
    EXPECT_EQ(comm.get_total_counts(), 3) << comm.table();
    EXPECT_EQ(y.placements(), kReplicate);
    EXPECT_TRUE(is_close(y.to_local(), torch::mm(w, x)));
    const auto strict = mt::local_map(
        mm_all_reduce,
        {.out_placements = kReplicate, .in_placements = {{}, kColWise, kRowWise}, .device_mesh = mesh});
    EXPECT_THROW(strict(mesh, w_split, x_split), c10::ValueError);
    EXPECT_NE(error_of([&] { strict(mesh, w_split, x_split); }).find("set redistribute_inputs=True"),
              std::string::npos);
  });
}

TEST(LocalMap, DifferentMeshesAndPlacedNumbersAreAssertionErrors) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = line(2);
    const mt::DeviceMesh other = mt::init_device_mesh(torch::kCPU, {2}, {"other"});
    const DTensor x = mt::distribute_tensor(numbers({8, 8}), mesh, kReplicate);
    const DTensor y = mt::distribute_tensor(numbers({8, 8}), other, kReplicate);
    EXPECT_THROW(mt::local_map(mm, {.out_placements = kReplicate})(x, y), mt::AssertionError);
    EXPECT_THROW(mt::local_map(mm, {.out_placements = kReplicate, .device_mesh = other})(x, x),
                 mt::AssertionError);
    EXPECT_THROW(mt::local_map(equal_all_gather, {.out_placements = kReplicate})(mesh, x, x),
                 mt::AssertionError);
  });
}

TEST(LocalMap, SeveralResultsHaveTheirOwnPlacements) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = line(2);
    const torch::Tensor whole = numbers({6, 4});
    const DTensor x = mt::distribute_tensor(whole, mesh, kRowWise);
    const auto several = mt::local_map(
        [](torch::Tensor a) { return std::make_tuple(a * 2, a.sum(0), static_cast<int64_t>(a.size(0))); },
        {.out_placements = {kRowWise, {Partial()}, {}}});
    const auto [twice, sum, rows] = several(x);
    EXPECT_TRUE(is_close(DTensor(twice).full_tensor(), whole * 2));
    EXPECT_TRUE(is_close(DTensor(sum).full_tensor(), whole.sum(0)));
    EXPECT_EQ(rows, 3);
    // A function template: the number of placements is checked when it runs.
    const auto any = mt::local_map([](const auto& a, const auto& b) { return a + b; },
                                   {.out_placements = {kRowWise}, .in_placements = {kRowWise}});
    EXPECT_THROW(any(x, x), mt::AssertionError);
  });
}

TEST(LocalMap, UnevenShardsGiveOneShapeOnAllRanks) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = line(2);
    const torch::Tensor whole = numbers({5, 4});
    const DTensor x = mt::distribute_tensor(whole, mesh, kRowWise);
    const auto twice = mt::local_map(mul, {.out_placements = kRowWise});
    const mt::CommDebugMode comm;
    const DTensor y = twice(x, 2.0);
    EXPECT_EQ(comm.get_total_counts(), 1) << "sizes are exchanged";
    EXPECT_EQ(y.sizes(), whole.sizes());
    EXPECT_TRUE(is_close(y.full_tensor(), whole * 2));
  });
}

TEST(LocalMap, IsDifferentiable) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = line(2);
    const torch::Tensor a = numbers({6, 4}).requires_grad_();
    const torch::Tensor b = numbers({4, 3}, torch::kFloat, 5).requires_grad_();
    torch::mm(a, b).square().sum().backward();
    const DTensor x = mt::distribute_tensor(a.detach().clone().requires_grad_(), mesh, kRowWise);
    const DTensor w = mt::distribute_tensor(b.detach().clone().requires_grad_(), mesh, kReplicate);
    // The gradient of the replicated factor is a term on every rank.
    const auto product =
        mt::local_map(mm, {.out_placements = kRowWise, .in_grad_placements = {kRowWise, {Partial()}}});
    product(x, w).square().sum().backward();
    EXPECT_TRUE(is_close(DTensor(x.grad()).full_tensor(), a.grad(), 1e-5));
    EXPECT_TRUE(is_close(DTensor(w.grad()).full_tensor(), b.grad(), 1e-5));
  });
}

// Functions of shards, with how arguments and result lie, and the same of whole tensors.
struct MappedCase {
  std::string name;
  std::function<torch::Tensor(const mt::DeviceMesh&, const torch::Tensor&, const torch::Tensor&)> local;
  Placements a, b, out;
  std::function<torch::Tensor(const torch::Tensor&, const torch::Tensor&)> whole = mm;
};

const auto kMm = [](const mt::DeviceMesh&, const torch::Tensor& a, const torch::Tensor& b) {
  return torch::mm(a, b);
};

std::vector<MappedCase> mapped_cases() {
  return {
      {"rows by a whole matrix", kMm, kRowWise, kReplicate, kRowWise},
      {"a whole matrix by columns", kMm, kReplicate, kColWise, kColWise},
      {"terms that stay pending", kMm, kColWise, kRowWise, {Partial()}},
      {"everything whole", kMm, kReplicate, kReplicate, kReplicate},
      {"terms that are summed", mm_all_reduce, kColWise, kRowWise, kReplicate},
      {"rows that are gathered",
       [](const mt::DeviceMesh& mesh, const torch::Tensor& a, const torch::Tensor& b) {
         return mt::all_gather_tensor(torch::mm(a, b), 0, mesh);
       },
       kRowWise, kReplicate, kReplicate},
      {"terms that are scattered",
       [](const mt::DeviceMesh& mesh, const torch::Tensor& a, const torch::Tensor& b) {
         return mt::reduce_scatter_tensor(torch::mm(a, b), "sum", 0, mesh);
       },
       kColWise, kRowWise, kRowWise},
      {"rows that use a sum over all",
       [](const mt::DeviceMesh& mesh, const torch::Tensor& a, const torch::Tensor& b) {
         return torch::mm(a, b) * mt::all_reduce(a.square().sum(), "sum", mesh);
       },
       kRowWise, kReplicate, kRowWise,
       [](const torch::Tensor& a, const torch::Tensor& b) { return torch::mm(a, b) * a.square().sum(); }},
  };
}

TEST(LocalMap, GradientsAreThoseOfTheWholeFunction) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = line(2);
    for (const MappedCase& c : mapped_cases()) {
      const torch::Tensor a = numbers({6, 4}, torch::kDouble).requires_grad_();
      const torch::Tensor b = numbers({4, 8}, torch::kDouble, 5).requires_grad_();
      c.whole(a, b).square().sum().backward();
      const torch::Tensor x = mt::distribute_tensor(a.detach(), mesh, c.a).requires_grad_();
      const torch::Tensor w = mt::distribute_tensor(b.detach(), mesh, c.b).requires_grad_();
      const auto mapped = mt::local_map(c.local, {.out_placements = c.out, .check_replicated = true});
      const torch::Tensor y = mapped(mesh, x, w);
      EXPECT_TRUE(is_close(DTensor(y).full_tensor().detach(), c.whole(a, b).detach())) << c.name;
      y.square().sum().backward();
      EXPECT_TRUE(is_close(DTensor(x.grad()).full_tensor(), a.grad())) << c.name;
      EXPECT_TRUE(is_close(DTensor(w.grad()).full_tensor(), b.grad())) << c.name;
    }
  });
}

TEST(LocalMap, GradientsOfReplicasAreSummedOverTheAxesAlongWhichRanksDiffer) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    const torch::Tensor a = numbers({5, 3}, torch::kDouble).requires_grad_();  // uneven
    const torch::Tensor b = numbers({3, 3}, torch::kDouble, 5).requires_grad_();
    const torch::Tensor scale = numbers({}, torch::kDouble, 2).requires_grad_();
    (torch::mm(a, b) * scale).square().sum().backward();
    const auto leaf = [&](const torch::Tensor& t, const Placements& lies) {
      return mt::distribute_tensor(t.detach(), mesh, lies).requires_grad_();
    };
    const torch::Tensor x = leaf(a, {Shard(0), Replicate()});
    const torch::Tensor w = leaf(b, {Replicate(), Replicate()});
    const torch::Tensor s = leaf(scale, {Replicate(), Replicate()});
    const auto mapped = mt::local_map(
        [](torch::Tensor l, torch::Tensor r, torch::Tensor factor) { return torch::mm(l, r) * factor; },
        {.out_placements = {Shard(0), Replicate()}, .check_replicated = true});
    mapped(x, w, s).square().sum().backward();
    EXPECT_TRUE(is_close(DTensor(x.grad()).full_tensor(), a.grad()));
    EXPECT_EQ(DTensor(w.grad()).placements(), (Placements{Partial(), Replicate()}));
    EXPECT_TRUE(is_close(DTensor(w.grad()).full_tensor(), b.grad()));
    EXPECT_TRUE(is_close(DTensor(s.grad()).full_tensor(), scale.grad()));
  });
}

TEST(LocalMap, FalseReplicasOfGradientsAreFoundInDebugMode) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = line(2);
    const torch::Tensor x = mt::distribute_tensor(numbers({6, 4}), mesh, kRowWise).requires_grad_();
    const torch::Tensor w =
        mt::distribute_tensor(numbers({4, 3}, torch::kFloat, 5), mesh, kReplicate).requires_grad_();
    const auto wrong = mt::local_map(
        mm,
        {.out_placements = kRowWise, .in_grad_placements = {kRowWise, kReplicate}, .check_replicated = true});
    const torch::Tensor y = wrong(x, w);
    const std::string error = error_of([&] { y.square().sum().backward(); });
    EXPECT_NE(error.find("the gradient of argument 1 is said to be replicated"), std::string::npos) << error;
  });
}

TEST(LocalMap, FalseReplicasAreFoundInDebugMode) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = line(2);
    const DTensor x = mt::distribute_tensor(numbers({6, 4}), mesh, kRowWise);
    const auto wrong = mt::local_map(mul, {.out_placements = kReplicate, .check_replicated = true});
    EXPECT_NE(error_of([&] { wrong(x, 2.0); }).find("is said to be replicated"), std::string::npos);
    const DTensor same = mt::distribute_tensor(numbers({6, 4}), mesh, kReplicate);
    EXPECT_EQ(DTensor(wrong(same, 2.0)).placements(), kReplicate);
  });
}

}  // namespace
}  // namespace meshtorch::testing

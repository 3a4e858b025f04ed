// Operators on lists of tensors that lie on several meshes: each mesh by itself.
#include "numbers.h"

namespace meshtorch::testing {
namespace {

using mt::Replicate;
using mt::Shard;

// Tensors on two meshes that cross, and a plain one.
struct MeshTensors {
  std::vector<torch::Tensor> plain, placed;
};

MeshTensors on_two_meshes(int64_t seed) {
  const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"a", "b"});
  MeshTensors all;
  for (const int64_t i : {0, 1, 2, 3}) {
    all.plain.push_back(numbers({5, 2 + i}, torch::kFloat, seed + i).abs() + 1);
    const auto axis = mesh[i % 2 == 0 ? "a" : "b"];
    all.placed.push_back(mt::distribute_tensor(all.plain.back(), axis, {i < 2 ? Shard(0) : Shard(1)}));
  }
  all.plain.push_back(numbers({3}, torch::kFloat, seed));
  all.placed.push_back(all.plain.back().clone());
  return all;
}

void expect_equal(const std::vector<torch::Tensor>& placed, const std::vector<torch::Tensor>& plain) {
  ASSERT_EQ(placed.size(), plain.size());
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const bool is_plain = i == 4;
    EXPECT_EQ(mt::is_dtensor(placed[i]), !is_plain);
    EXPECT_TRUE(is_close(is_plain ? placed[i] : mt::DTensor(placed[i]).full_tensor(), plain[i])) << i;
  }
}

TEST(SeveralMeshes, ForeachOperatorsRunOnEach) {
  on_ranks(4, [](int) {
    const MeshTensors x = on_two_meshes(1);
    const MeshTensors y = on_two_meshes(7);
    expect_equal(torch::_foreach_add(x.placed, y.placed, 2), torch::_foreach_add(x.plain, y.plain, 2));
    expect_equal(torch::_foreach_mul(x.placed, {1, 2, 3, 4, 5}),
                 torch::_foreach_mul(x.plain, {1, 2, 3, 4, 5}));
    expect_equal(torch::_foreach_norm(x.placed), torch::_foreach_norm(x.plain));
    torch::_foreach_addcdiv_(x.placed, y.placed, y.placed, 3);
    torch::_foreach_addcdiv_(x.plain, y.plain, y.plain, 3);
    expect_equal(x.placed, x.plain);
  });
}

TEST(SeveralMeshes, AGradientScalerAsksEachOnceWhetherAllIsFinite) {
  on_ranks(4, [](int) {
    const torch::Tensor inverse = torch::tensor({0.5F});
    for (const bool is_infinite : {false, true}) {
      MeshTensors x = on_two_meshes(1);
      for (const auto& list : {x.placed, x.plain}) {
        if (is_infinite) torch::Tensor(list[3]).index_put_({4, 2}, INFINITY);
      }
      torch::Tensor found = torch::zeros({1});
      const mt::CommDebugMode comm;
      torch::_amp_foreach_non_finite_check_and_unscale_(x.placed, found, inverse);
      EXPECT_EQ(comm.get_total_counts(), 2) << "one flag a mesh";
      EXPECT_FALSE(mt::is_dtensor(found));
      EXPECT_EQ(found.item<float>(), is_infinite ? 1 : 0) << "on every rank, whoever holds it";
      torch::_amp_foreach_non_finite_check_and_unscale_(x.plain, found, inverse);
      expect_equal(x.placed, x.plain);
    }
  });
}

TEST(SeveralMeshes, AGradientScalerSeesTheSumOfWhatPends) {
  on_ranks(2, [](int rank) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2});
    // Finite terms of a sum that is not.
    const torch::Tensor terms = torch::tensor({rank + 1.0F, 3e38F});
    const mt::DTensor gradient = mt::DTensor::from_local(terms, mesh, {mt::Partial()});
    torch::Tensor found = torch::zeros({1});
    torch::_amp_foreach_non_finite_check_and_unscale_({gradient}, found, torch::tensor({0.5F}));
    EXPECT_EQ(found.item<float>(), 1);
    EXPECT_TRUE(gradient.placements()[0].is_partial());
    EXPECT_EQ(gradient.full_tensor()[0].item<float>(), 1.5F);
  });
}

TEST(SeveralMeshes, FusedOptimizersRunOnEach) {
  on_ranks(4, [](int) {
    MeshTensors x = on_two_meshes(1), g = on_two_meshes(7), m = on_two_meshes(11), v = on_two_meshes(13);
    for (const auto which : {&MeshTensors::placed, &MeshTensors::plain}) {
      std::vector<torch::Tensor> steps;
      for (std::size_t i = 0; i < x.plain.size(); ++i) steps.push_back(torch::tensor(1.0F));
      torch::_fused_adamw_(x.*which, g.*which, m.*which, v.*which, {}, steps, 0.1, 0.9, 0.99, 0.01, 1e-8,
                           false, false);
    }
    expect_equal(x.placed, x.plain);
    expect_equal(m.placed, m.plain);
  });
}

// Parameters as programs have them: on a flattened mesh, on the 2-D one, on one axis of another arrangement
// of the same ranks, and plain.
std::vector<torch::Tensor> parameters_on(bool is_distributed) {
  const mt::DeviceMesh dense = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
  const mt::DeviceMesh flat = dense.flatten("world");
  const mt::DeviceMesh experts = mt::init_device_mesh(torch::kCPU, {1, 4}, {"efsdp", "ep"});
  const std::vector<std::pair<mt::DeviceMesh, mt::Placements>> places{{dense, {Shard(0), Shard(1)}},
                                                                      {flat, {Shard(0)}},
                                                                      {experts, {Replicate(), Shard(1)}},
                                                                      {dense, {Replicate(), Shard(0)}}};
  std::vector<torch::Tensor> parameters;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const int64_t seed = static_cast<int64_t>(i);
    const auto place = [&](const torch::Tensor& t) -> torch::Tensor {
      return is_distributed ? mt::distribute_tensor(t, places[i].first, places[i].second) : t;
    };
    torch::Tensor p = place(numbers({5, 3 + seed}, torch::kDouble, seed)).detach().requires_grad_();
    p.mutable_grad() = place(numbers({5, 3 + seed}, torch::kDouble, seed + 9));
    parameters.push_back(p);
  }
  torch::Tensor plain = numbers({7}, torch::kDouble, 5).requires_grad_();
  plain.mutable_grad() = numbers({7}, torch::kDouble, 6);
  parameters.push_back(plain);
  return parameters;
}

TEST(SeveralMeshes, GradientsAreClippedByTheNormOfAll) {
  on_ranks(4, [](int) {
    for (const double p : {1.0, 2.0, 3.0, static_cast<double>(INFINITY)}) {
      for (const std::size_t count : {std::size_t{3}, std::size_t{5}}) {  // with a plain one, and without
        std::vector<torch::Tensor> distributed = parameters_on(true), plain = parameters_on(false);
        distributed.resize(count);
        plain.resize(count);
        const double norm = torch::nn::utils::clip_grad_norm_(distributed, 0.5, p);
        EXPECT_NEAR(norm, torch::nn::utils::clip_grad_norm_(plain, 0.5, p), 1e-12) << p;
        for (std::size_t i = 0; i < count; ++i) {
          const torch::Tensor& gradient = distributed[i].grad();
          EXPECT_EQ(mt::is_dtensor(gradient), i < 4);
          EXPECT_TRUE(
              is_close(i < 4 ? mt::DTensor(gradient).full_tensor() : gradient, plain[i].grad(), 1e-12))
              << i;
        }
      }
    }
  });
}

TEST(SeveralMeshes, AFactorOnAnotherMeshScalesLists) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh dense = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    const torch::Tensor factor = mt::distribute_tensor(torch::full({}, 3.0), dense.flatten(), {Replicate()});
    const torch::Tensor term =
        mt::DTensor::from_local(torch::full({}, 0.75), dense, {mt::Partial(), mt::Partial()});
    for (const torch::Tensor& three : {factor, term}) {
      MeshTensors x = on_two_meshes(1);
      torch::_foreach_mul_(x.placed, three);
      torch::_foreach_mul_(x.plain, 3.0);
      x.placed[1].mul_(three);
      x.plain[1].mul_(3.0);
      x.placed[4].mul_(three);
      x.plain[4].mul_(3.0);
      expect_equal(x.placed, x.plain);
    }
  });
}

TEST(SeveralMeshes, InOneElementAreAnError) {
  on_ranks(4, [](int) {
    const MeshTensors x = on_two_meshes(1);
    const std::vector<torch::Tensor> turned(x.placed.rbegin() + 1, x.placed.rend());
    const std::vector<torch::Tensor> first(x.placed.begin(), x.placed.end() - 1);
    const std::string error = error_of([&] { torch::_foreach_add(first, turned); });
    EXPECT_NE(error.find("got tensors on different meshes"), std::string::npos) << error;
  });
}

}  // namespace
}  // namespace meshtorch::testing

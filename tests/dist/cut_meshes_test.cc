// Meshes of equal content are one; what each was cut from is not.
#include "rank_data.h"

namespace meshtorch::testing {
namespace {

using Ranks = std::vector<std::int64_t>;

TEST(CutMeshes, TheRootIsTheMeshThatAHandleWasCutFrom) {
  on_ranks(4, [](int) {
    const auto one = mt::init_device_mesh(torch::kCPU, {2, 1, 2}, {"dp", "cp", "tp"});
    const auto other = mt::init_device_mesh(torch::kCPU, {2, 2, 1}, {"dp", "tp", "ep"});
    EXPECT_EQ(one.root(), one);
    EXPECT_EQ(one["dp"].root(), one);
    EXPECT_EQ((one[{"cp", "tp"}]["tp"].root()), one);
    EXPECT_EQ((one[{"dp", "cp"}].flatten().root()), one);
    EXPECT_EQ(one.unflatten("dp", {1, 2}, {"outer", "inner"})["inner"].root(), one);
    EXPECT_EQ(mt::DeviceMesh::concatenate({one["tp"], one["dp"]}).root(), one);
    EXPECT_EQ(other["dp"], one["dp"]);
    EXPECT_EQ(other["dp"].root(), other) << "though an equal mesh was cut from another before";
    EXPECT_EQ(one["dp"].root(), one) << "though an equal mesh was cut from another since";
    const mt::DeviceMesh of_ranks(torch::kCPU, one["dp"].ranks(), {"dp"});
    EXPECT_EQ(of_ranks, one["dp"]);
    EXPECT_EQ(of_ranks.root(), of_ranks);
    const auto tensor = mt::distribute_tensor(torch::ones({4}), one["tp"], {mt::Shard(0)});
    EXPECT_EQ(tensor.device_mesh().root(), one);
  });
}

TEST(CutMeshes, AFlattenedNameIsThatOfTheMeshWhichWasCut) {
  on_ranks(4, [](int rank) {
    const auto one = mt::init_device_mesh(torch::kCPU, {2, 2, 1}, {"dp", "cp", "tp"});
    const auto other = mt::init_device_mesh(torch::kCPU, {2, 2, 1}, {"dp", "cp", "ep"});
    EXPECT_EQ((one[{"dp", "cp"}]), (other[{"dp", "cp"}]));
    EXPECT_EQ((other[{"dp", "cp"}].flatten("all").ranks()), (Ranks{0, 1, 2, 3}));
    EXPECT_EQ(other["all"].size(), 4);
    EXPECT_EQ(error_of([&] { one["all"]; }),
              "meshtorch: the mesh has no axis \"all\"\n  its axes are dp, cp, tp\n  do: use one of these "
              "names");
    // A name is free in one that has it not.
    EXPECT_EQ((one[{"dp", "cp"}].flatten("ep").size()), 4);
    EXPECT_EQ((other[{"cp", "ep"}].flatten("all_too").ranks()), (Ranks{2 * (rank / 2), 2 * (rank / 2) + 1}));
  });
}

TEST(CutMeshes, SlicesOfOneMeshGoTogetherThoughEqualOnesWereThereBefore) {
  on_ranks(4, [](int) {
    // Equal to slices on some ranks only.
    const mt::DeviceMesh first(torch::kCPU, Ranks{0, 1}, {"tp"});
    const mt::DeviceMesh second(torch::kCPU, Ranks{0, 2}, {"dp"});
    const auto mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    EXPECT_EQ(mt::DeviceMesh::concatenate({mesh["dp"], mesh["tp"]}), mesh);
    mt::nn::Linear linear(4, 4);
    mt::distribute_module(*linear, mesh["tp"]);
    mt::fully_shard(*linear, mesh["dp"]);
    EXPECT_EQ(mt::DTensor(linear->weight).device_mesh(), mesh);
    EXPECT_EQ(mt::DTensor(linear->weight).device_mesh()["tp"].root(), mesh);
  });
}

TEST(CutMeshes, CostsHoldForSlicesOfEachMeshThatTheyWereCutFrom) {
  on_ranks(4, [](int) {
    const AxisCost cost{.latency_s = 1e-3, .seconds_per_byte = 1e-9};
    const auto one = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "cp"});
    EXPECT_EQ(one["dp"].axis_cost(), AxisCost{});
    const auto other = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    other.set_axis_cost("dp", cost);
    EXPECT_EQ(other["dp"].axis_cost(), cost);
    const AxisCost dear{.latency_s = 2e-3, .seconds_per_byte = 1e-9};
    other["dp"].set_axis_cost(0, dear);
    EXPECT_EQ(other.axis_cost("dp"), dear);
    EXPECT_EQ(one.axis_cost("dp"), dear);
  });
}

}  // namespace
}  // namespace meshtorch::testing

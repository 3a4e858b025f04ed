// What communication costs, as a user says or as it is measured, and what is chosen by it.
#include "numbers.h"

namespace meshtorch::testing {
namespace {

using mt::AxisCost;
using mt::Shard;

constexpr AxisCost kSlowToStart{.latency_s = 1, .seconds_per_byte = 1e-15};
constexpr AxisCost kSlowToSend{.latency_s = 1e-12, .seconds_per_byte = 1};

// A large weight: gathering it is one collective of many bytes, moving the small input and reducing the small
// result are two of few.
mt::Placements chosen(const mt::DeviceMesh& mesh) {
  const mt::DTensor x = mt::distribute_tensor(numbers({4, 512}), mesh, {Shard(0)});
  const mt::DTensor w = mt::distribute_tensor(numbers({512, 16}), mesh, {Shard(0)});
  return mt::placements(torch::mm(x, w));
}

TEST(AxisCost, ThatIsSetChangesTheChoice) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = line(4);
    mesh.set_axis_cost("tp", kSlowToStart);
    EXPECT_EQ(chosen(mesh), mt::Placements{Shard(0)});
    mesh.set_axis_cost("tp", kSlowToSend);
    EXPECT_EQ(chosen(mesh), mt::Placements{mt::Partial()}) << "decisions made before are forgotten";
    mesh.set_axis_cost(0, {});
  });
}

TEST(AxisCost, HoldsForAllMeshesThatWereCutFromOne) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"a", "b"});
    EXPECT_EQ(mesh.axis_cost("a"), AxisCost{});
    mesh["b"].set_axis_cost(0, {.latency_s = 1e-3, .seconds_per_byte = 1e-12});
    EXPECT_EQ(mesh.axis_cost("a"), AxisCost{});
    EXPECT_EQ(mesh.axis_cost(-1), (AxisCost{1e-3, 1e-12}));
    const mt::DeviceMesh joined = mesh.flatten("ab");
    EXPECT_EQ(joined.axis_cost(), (AxisCost{1e-3, 1e-10})) << "the worst of both, of which one is not set";
    mesh.set_axis_cost("a", {.latency_s = 1e-6, .seconds_per_byte = 1e-11});
    EXPECT_EQ(joined.axis_cost(), (AxisCost{1e-3, 1e-11}));
    joined.set_axis_cost(0, kSlowToSend);
    EXPECT_EQ(joined.axis_cost(), kSlowToSend);
    EXPECT_EQ(mesh.axis_cost("a"), (AxisCost{1e-6, 1e-11}));
  });
}

TEST(AxisCost, OfAPartIsThatOfTheWhole) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh whole = mt::init_device_mesh(torch::kCPU, {4}, {"whole"});
    whole.set_axis_cost("whole", kSlowToStart);
    const mt::DeviceMesh parts = whole.unflatten("whole", {2, 2}, {"outer", "inner"});
    EXPECT_EQ(parts.axis_cost("outer"), kSlowToStart);
    EXPECT_EQ(parts.axis_cost("inner"), kSlowToStart);
  });
}

TEST(AxisCost, IsMeasuredWithOneResultForAllRanks) {
  on_ranks(4, [](int rank) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {4, 1}, {"ranks", "alone"});
    mesh.measure();
    const AxisCost cost = mesh.axis_cost("ranks");
    EXPECT_GT(cost.latency_s, 0);
    EXPECT_GT(cost.seconds_per_byte, 0);
    EXPECT_EQ(mesh.axis_cost("alone"), AxisCost{});
    const torch::Tensor mine = torch::tensor({{cost.latency_s, cost.seconds_per_byte}}, torch::kDouble);
    const torch::Tensor all = mt::all_gather_tensor(mine, 0, {});
    EXPECT_TRUE(is_equal(all, mine.expand({4, 2}).contiguous())) << "rank " << rank << "\n" << all;
  });
}

TEST(AxisCost, IsMeasuredByRanksOutsideTheMeshToo) {
  on_ranks(3, [](int) {
    const mt::DeviceMesh mesh(torch::kCPU, std::vector<std::int64_t>{2, 0});
    mesh.measure();
    const torch::Tensor mine = torch::tensor({{mesh.axis_cost().latency_s}}, torch::kDouble);
    const torch::Tensor all = mt::all_gather_tensor(mine, 0, {});
    EXPECT_TRUE(is_equal(all, mine.expand({3, 1}).contiguous()));
    EXPECT_NE(mesh.axis_cost(), AxisCost{});
  });
}

TEST(AxisCost, ThatMakesNoSenseIsRefused) {
  on_ranks(1, [](int) {
    const mt::DeviceMesh mesh = line(1);
    EXPECT_EQ(error_of([&] { mesh.set_axis_cost(0, {.latency_s = -1, .seconds_per_byte = 1}); }),
              "meshtorch: an axis cannot cost -1 s a collective and 1 s a byte\n  in: set_axis_cost\n  do: "
              "give a latency of 0 or more, and more than 0 a byte");
    EXPECT_NE(error_of([&] { mesh.set_axis_cost(0, {.latency_s = 0, .seconds_per_byte = 0}); }), "");
    EXPECT_NE(error_of([&] { mesh.set_axis_cost("pp", {}); }).find("no axis \"pp\""), std::string::npos);
  });
}

}  // namespace
}  // namespace meshtorch::testing

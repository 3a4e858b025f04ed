// DeviceMesh: making, asking, slicing, flattening, groups, printing, and each mistake.
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "rank_data.h"

namespace meshtorch::testing {
namespace {

using Ranks = std::vector<std::int64_t>;

TEST(Mesh, KnowsItsArrangement) {
  on_ranks(4, [](int rank) {
    const auto mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    EXPECT_EQ(mesh.device_type(), torch::kCPU);
    EXPECT_EQ(mesh.ndim(), 2);
    EXPECT_EQ(mesh.shape(), (Ranks{2, 2}));
    EXPECT_EQ(mesh.size(), 4);
    EXPECT_EQ(mesh.size(0), 2);
    EXPECT_EQ(mesh.size(-1), 2);
    EXPECT_EQ(mesh.size("tp"), 2);
    EXPECT_EQ(mesh.names(), (mt::DeviceMesh::Names{"dp", "tp"}));
    EXPECT_EQ(mesh.axis("tp"), 1);
    EXPECT_TRUE(is_equal(mesh.mesh(), torch::arange(4).view({2, 2})));
    EXPECT_EQ(mesh.get_rank(), rank);
    EXPECT_EQ(mesh.get_local_rank("dp"), rank / 2);
    EXPECT_EQ(mesh.get_local_rank(1), rank % 2);
    EXPECT_EQ(mesh.get_local_rank(-2), rank / 2);
    EXPECT_EQ(mesh.get_coordinate().value(), (Ranks{rank / 2, rank % 2}));
  });
}

TEST(Mesh, AndGroupsThatAreMovedAreStillThere) {
  on_ranks(2, [](int rank) {
    auto mesh = mt::init_device_mesh(torch::kCPU, {2});
    const auto taken = std::move(mesh);
    EXPECT_EQ(mesh.size(), 2);  // NOLINT(bugprone-use-after-move): there is no empty mesh
    EXPECT_TRUE(mesh == taken);
    mt::Group group;
    const mt::Group other = std::move(group);
    EXPECT_EQ(group.rank(), rank);  // NOLINT(bugprone-use-after-move)
    EXPECT_EQ(other.size(), 2);
  });
}

TEST(Mesh, TakesTensorsAndListsOfRanksInAnyOrder) {
  on_ranks(4, [](int rank) {
    const mt::DeviceMesh turned(torch::kCPU, torch::tensor({{3, 1}, {0, 2}}), {"a", "b"});
    EXPECT_EQ(turned.ranks(), (Ranks{3, 1, 0, 2}));
    EXPECT_EQ(turned.get_coordinate().value(),
              (std::vector<Ranks>{{1, 0}, {0, 1}, {1, 1}, {0, 0}}[static_cast<std::size_t>(rank)]));
    EXPECT_EQ(turned.get_group("b").ranks(), rank == 3 || rank == 1 ? (Ranks{3, 1}) : (Ranks{0, 2}));
    EXPECT_EQ(turned.get_group("a").ranks(), rank == 3 || rank == 0 ? (Ranks{3, 0}) : (Ranks{1, 2}));
    const mt::DeviceMesh line(torch::kCPU, Ranks{2, 0, 3, 1});
    EXPECT_EQ(line.get_local_rank(), (std::array{1, 3, 0, 2}[static_cast<std::size_t>(rank)]));
    EXPECT_TRUE(is_equal(mt::all_gather_tensor(torch::full({1}, rank), 0, line),
                         torch::tensor({2, 0, 3, 1}, torch::kLong)));
    EXPECT_EQ(mt::DeviceMesh(torch::kCPU, torch::tensor(rank)).shape(), (Ranks{1}));
  });
}

TEST(Mesh, GroupsReachTheRightRanks) {
  on_ranks(4, [](int rank) {
    const auto mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    const torch::Tensor mine = torch::full({1}, rank, torch::kLong);
    const std::int64_t row = 2 * (rank / 2);
    EXPECT_TRUE(is_equal(mt::all_gather_tensor(mine, 0, {mesh, "tp"}), torch::tensor({row, row + 1})));
    EXPECT_TRUE(is_equal(mt::all_gather_tensor(mine, 0, {mesh, 0}),
                         torch::tensor({rank % 2, rank % 2 + 2}, torch::kLong)));
    EXPECT_TRUE(is_equal(mt::all_gather_tensor(mine, 0, mesh["tp"]), torch::tensor({row, row + 1})));
    const auto groups = mesh.get_all_groups();
    ASSERT_EQ(groups.size(), 2U);
    EXPECT_EQ(groups[0], mesh.get_group("dp"));
    EXPECT_EQ(groups[1], mesh.get_group(1));
  });
}

TEST(Mesh, GroupsAreMadeOnceAndShared) {
  on_ranks(4, [](int rank) {
    const auto mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    const auto process_group = mesh.get_group("tp").process_group();
    EXPECT_EQ(mesh.get_group(1).process_group(), process_group);
    EXPECT_EQ(mesh["tp"].get_group().process_group(), process_group);
    EXPECT_EQ(mt::init_device_mesh(torch::kCPU, {2, 2}, {"x", "y"}).get_group("y").process_group(),
              process_group);
    const std::int64_t row = 2 * (rank / 2);
    EXPECT_EQ(mt::Group({row, row + 1}).process_group(), process_group);
    EXPECT_EQ(mt::Group(process_group), mesh.get_group("tp"));
    EXPECT_EQ(mt::init_device_mesh(torch::kCPU, {4}).get_group().process_group(),
              mt::Group().process_group());
  });
}

TEST(Mesh, SlicesRunAlongTheNamedAxes) {
  on_ranks(4, [](int rank) {
    const auto mesh = mt::init_device_mesh(torch::kCPU, {2, 1, 2}, {"pp", "dp", "tp"});
    const auto tp = mesh["tp"];
    EXPECT_EQ(tp.shape(), (Ranks{2}));
    EXPECT_EQ(tp.names(), (mt::DeviceMesh::Names{"tp"}));
    EXPECT_EQ(tp.ranks(), (Ranks{2 * (rank / 2), 2 * (rank / 2) + 1}));
    const auto two = mesh[{"pp", "dp"}];
    EXPECT_EQ(two.shape(), (Ranks{2, 1}));
    EXPECT_EQ(two.ranks(), (Ranks{rank % 2, rank % 2 + 2}));
    EXPECT_EQ(two["dp"], mesh["dp"]);
    EXPECT_EQ((mesh[{"pp", "dp", "tp"}]), mesh);
    EXPECT_EQ(tp["tp"], tp);
    EXPECT_EQ(&mesh["tp"].ranks(), &tp.ranks());
  });
}

TEST(Mesh, FlattenJoinsAxesIntoANamedOne) {
  on_ranks(4, [](int rank) {
    const auto mesh = mt::init_device_mesh(torch::kCPU, {2, 1, 2}, {"dp", "cp", "tp"});
    const auto flat = mesh[{"dp", "cp"}].flatten();
    EXPECT_EQ(flat.names(), (mt::DeviceMesh::Names{"dp_cp"}));
    EXPECT_EQ(flat.ranks(), (Ranks{rank % 2, rank % 2 + 2}));
    EXPECT_EQ(mesh["dp_cp"], flat);
    EXPECT_EQ(flat.get_group(), mesh.get_group("dp"));
    const auto all = mesh.flatten("world");
    EXPECT_EQ(all.ranks(), (Ranks{0, 1, 2, 3}));
    EXPECT_EQ(mesh["world"], all);
    EXPECT_EQ(mesh.flatten("world"), all);
    EXPECT_TRUE(is_equal(mt::all_reduce(torch::ones({1}), "sum", mesh["world"]), torch::full({1}, 4.0F)));
    EXPECT_EQ(
        error_of([&] { mesh.flatten("tp"); }),
        "meshtorch: an axis tp already exists for submesh of the DeviceMesh with axes dp, cp, tp\n  do: "
        "choose another name for the flattened axis");
    EXPECT_EQ(
        error_of([&] { mesh[{"dp", "cp"}].flatten("world"); }),
        "meshtorch: Flatten mesh with mesh_dim_name world has been created before, with ranks [0, 1, 2, "
        "3]\n  do: choose another name");
  });
}

TEST(Mesh, SlicesMixFlattenedAxesAndOthers) {
  on_ranks(4, [](int rank) {
    const auto mesh = mt::init_device_mesh(torch::kCPU, {2, 1, 2}, {"dp", "cp", "tp"});
    mesh[{"cp", "tp"}].flatten("model");
    const auto both = mesh[{"dp", "model"}];
    EXPECT_EQ(both.shape(), (Ranks{2, 2}));
    EXPECT_EQ(both.ranks(), (Ranks{0, 1, 2, 3}));
    EXPECT_EQ(both.get_coordinate().value(), (Ranks{rank / 2, rank % 2}));
    EXPECT_EQ(both["model"], mesh["model"]);
    EXPECT_EQ(both.get_group("model"), mesh.get_group("tp"));
    EXPECT_EQ(
        error_of([&] { mesh[{"model", "dp"}]; }),
        "meshtorch: the axes of a slice must keep the mesh's order\n  asked: model, dp\n  mesh: dp, cp, "
        "tp\n  do: name each axis once, in the mesh's order");
    mesh[{"dp", "tp"}].flatten("ends");
    EXPECT_EQ(error_of([&] { mesh[{"ends", "tp"}]; }).substr(0, 57),
              "meshtorch: the axes of a slice must keep the mesh's order");
  });
}

TEST(Mesh, UnflattenPutsSeveralAxesInThePlaceOfOne) {
  on_ranks(4, [](int rank) {
    const auto mesh = mt::init_device_mesh(torch::kCPU, {4}, {"world"});
    const auto split = mesh.unflatten("world", {2, 2}, {"dp", "tp"});
    EXPECT_EQ(split, mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"}));
    EXPECT_EQ(split["tp"].ranks(), (Ranks{2 * (rank / 2), 2 * (rank / 2) + 1}));
    const auto deeper = split.unflatten(0, {1, 2}, {"a", "b"});
    EXPECT_EQ(deeper.shape(), (Ranks{1, 2, 2}));
    EXPECT_EQ(deeper.names(), (mt::DeviceMesh::Names{"a", "b", "tp"}));
    EXPECT_EQ(deeper["b"].get_group(), split["dp"].get_group());
    EXPECT_EQ((deeper[{"b", "tp"}].flatten("all").ranks()), (Ranks{0, 1, 2, 3}));
    EXPECT_EQ(
        error_of([&] { mesh.unflatten(0, {3, 2}, {"a", "b"}); }),
        "meshtorch: an axis of 4 ranks cannot become axes of [3, 2] ranks\n  do: give sizes whose product "
        "is 4");
    EXPECT_EQ(error_of([&] { mesh.unflatten(0, {2, 2}, {"a"}); }),
              "meshtorch: 2 axes in the place of one got 1 names\n  do: give one name for each, or none to a "
              "mesh without names");
  });
}

TEST(Mesh, ConcatenateBringsSlicesTogether) {
  on_ranks(4, [](int rank) {
    const auto mesh = mt::init_device_mesh(torch::kCPU, {2, 1, 2}, {"pp", "dp", "tp"});
    EXPECT_EQ(mt::DeviceMesh::concatenate({mesh[{"pp", "dp"}], mesh["tp"]}), mesh);
    const auto turned = mt::DeviceMesh::concatenate({mesh["tp"], mesh["pp"]});
    EXPECT_EQ(turned.ranks(), (Ranks{0, 2, 1, 3}));
    EXPECT_EQ(turned.get_coordinate().value(), (Ranks{rank % 2, rank / 2}));
    EXPECT_EQ(turned.get_group("tp"), mesh.get_group("tp"));
    EXPECT_EQ(
        error_of([&] { mt::DeviceMesh::concatenate({mesh["tp"], mesh[{"dp", "tp"}]}); }),
        "meshtorch: meshes that overlap cannot be concatenated\n  axes: tp, dp, tp\n  do: name each axis "
        "once");
    const mt::DeviceMesh other(torch::kCPU, Ranks{1, 0, 2, 3}, {"x"});
    EXPECT_EQ(error_of([&] { mt::DeviceMesh::concatenate({mesh["tp"], other}); }).substr(0, 78),
              "meshtorch: meshes that were cut from different meshes cannot be concatenated\n ");
  });
}

TEST(Mesh, RanksOutsideHoldItAndTakeNoPart) {
  on_ranks(4, [](int rank) {
    const mt::DeviceMesh mesh(torch::kCPU, Ranks{1, 3}, {"x"});
    EXPECT_EQ(mesh.get_coordinate().has_value(), rank % 2 == 1);
    EXPECT_EQ(mesh.get_group().rank(), rank % 2 == 1 ? rank / 2 : -1);
    if (rank % 2 == 1) {
      EXPECT_TRUE(is_equal(mt::all_reduce(torch::full({1}, rank), "sum", mesh), torch::full({1}, 4)));
    } else {
      EXPECT_EQ(error_of([&] { mesh.get_local_rank(); }),
                "meshtorch: rank " + std::to_string(rank) +
                    " is not in DeviceMesh((x=2), [1, 3], cpu)\n  do: ask get_coordinate() first");
      EXPECT_EQ(error_of([&] { mt::all_reduce(torch::ones({1}), "sum", mesh); }),
                "meshtorch: this rank is not in the group of ranks [1, 3]\n  do: call its collectives on "
                "those ranks only");
    }
  });
}

TEST(Mesh, EqualContentIsEqual) {
  on_ranks(2, [](int) {
    const auto mesh = mt::init_device_mesh(torch::kCPU, {2}, {"x"});
    const auto same = mt::DeviceMesh(torch::kCPU, Ranks{0, 1}, {"x"});
    EXPECT_EQ(mesh, same);
    EXPECT_EQ(mesh.hash(), same.hash());
    EXPECT_EQ(std::hash<mt::DeviceMesh>()(mesh), mesh.hash());
    EXPECT_NE(mesh, mt::init_device_mesh(torch::kCPU, {2}));
    EXPECT_NE(mesh, mt::init_device_mesh(torch::kCPU, {2}, {"y"}));
    EXPECT_NE(mesh, mt::DeviceMesh(torch::kCPU, Ranks{1, 0}, {"x"}));
    EXPECT_NE(mesh, mt::init_device_mesh(torch::kCUDA, {2}, {"x"}));
    EXPECT_NE(mt::init_device_mesh(torch::kCPU, {2, 1}), mt::init_device_mesh(torch::kCPU, {1, 2}));
  });
}

TEST(Mesh, PrintsItself) {
  on_ranks(4, [](int) {
    const auto text = [](const mt::DeviceMesh& mesh) { return (std::ostringstream() << mesh).str(); };
    EXPECT_EQ(text(mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"})),
              "DeviceMesh((dp=2, tp=2), [[0, 1], [2, 3]], cpu)");
    EXPECT_EQ(text(mt::init_device_mesh(torch::kCUDA, {2, 1, 2})),
              "DeviceMesh((2, 1, 2), [[[0, 1]], [[2, 3]]], cuda)");
    EXPECT_EQ(text(mt::DeviceMesh(torch::kCPU, Ranks{3, 0}, {"x"})), "DeviceMesh((x=2), [3, 0], cpu)");
  });
}

TEST(Mesh, FromGroupUsesThatGroup) {
  on_ranks(3, [](int rank) {
    const mt::Group all;
    const auto mesh = mt::DeviceMesh::from_group(all, torch::kCPU, {"x"});
    EXPECT_EQ(mesh, mt::init_device_mesh(torch::kCPU, {3}, {"x"}));
    EXPECT_EQ(mesh.get_group().process_group(), all.process_group());
    const auto own = c10::make_intrusive<c10d::ProcessGroup>(nullptr, rank, 3);
    own->setBackend(torch::kCPU, c10d::ProcessGroup::BackendType::CUSTOM,
                    all.process_group()->getBackend(torch::kCPU));
    const auto foreign = mt::DeviceMesh::from_group(own, torch::kCPU, {"x"});
    EXPECT_EQ(foreign.get_group().process_group(), own);
    EXPECT_EQ(foreign.get_local_rank("x"), rank);
    EXPECT_NE(foreign, mesh);
    EXPECT_EQ(foreign["x"], foreign);
    EXPECT_TRUE(is_equal(mt::all_reduce(torch::ones({1}), "sum", foreign), torch::full({1}, 3.0F)));
  });
}

TEST(Mesh, AWorldOfOneHasMeshesToo) {
  on_ranks(1, [](int) {
    const auto mesh = mt::init_device_mesh(torch::kCPU, {1, 1}, {"dp", "tp"});
    EXPECT_EQ(mesh.get_coordinate().value(), (Ranks{0, 0}));
    EXPECT_TRUE(is_equal(mt::all_reduce(torch::ones({2}), "sum", mesh["tp"]), torch::ones({2})));
  });
}

TEST(Mesh, MistakesSayWhatWasExpected) {
  on_ranks(4, [](int) {
    const auto expect = [](const std::string& message, const std::function<void()>& call) {
      EXPECT_EQ(error_of(call), message);
    };
    expect(
        "meshtorch: a mesh of shape [2, 3] has 6 ranks, but the world has 4\n  do: make their product the "
        "world size, or list "
        "the ranks with DeviceMesh(device, ranks)",
        [] { mt::init_device_mesh(torch::kCPU, {2, 3}); });
    expect(
        "meshtorch: an axis of a mesh has at least 1 rank, not 0, in shape [4, 0]\n  do: give positive sizes",
        [] { mt::init_device_mesh(torch::kCPU, {4, 0}); });
    expect(
        "meshtorch: a mesh needs at least one axis and one rank, not shape [0]\n  do: list the ranks of the "
        "mesh",
        [] { mt::DeviceMesh(torch::kCPU, Ranks{}); });
    expect(
        "meshtorch: a mesh is a tensor of whole numbers, not of Float\n  do: give an int64 tensor of ranks",
        [] { mt::DeviceMesh(torch::kCPU, torch::ones({2})); });
    expect("meshtorch: rank 4 of a mesh is not in the world of 4 ranks\n  do: use ranks from 0 to 3",
           [] { mt::DeviceMesh(torch::kCPU, Ranks{0, 4}); });
    expect("meshtorch: rank 1 stands twice in one mesh\n  do: list each rank once",
           [] { mt::Group({1, 2, 1}); });
    expect("meshtorch: a mesh of 2 axes has 1 names (dp)\n  do: give one name for each axis, or none",
           [] { mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp"}); });
    expect(
        "meshtorch: the axis name \"x\" is used twice in one mesh (x, x)\n  do: give each axis a name of its "
        "own",
        [] { mt::init_device_mesh(torch::kCPU, {2, 2}, {"x", "x"}); });
    expect("meshtorch: an axis name of a mesh is empty (x, )\n  do: name every axis, or none",
           [] { mt::init_device_mesh(torch::kCPU, {2, 2}, {"x", ""}); });
    const auto mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    expect("meshtorch: the mesh has no axis \"pp\"\n  its axes are dp, tp\n  do: use one of these names",
           [&] { mesh["pp"]; });
    expect(
        "meshtorch: the mesh has no axis \"pp\"\n  its axes have no names\n  do: give them names when the "
        "mesh is made",
        [] { mt::init_device_mesh(torch::kCPU, {4})["pp"]; });
    expect("meshtorch: a mesh of 2 axes has no axis 2\n  do: give an axis from -2 to 1",
           [&] { mesh.get_group(2); });
    expect("meshtorch: a mesh of 2 axes has a group for each\n  do: name one, as in get_group(\"dp\")",
           [&] { mesh.get_group(); });
    expect(
        "meshtorch: the axes of a slice must keep the mesh's order\n  asked: tp, dp\n  mesh: dp, tp\n  do: "
        "name each axis once, "
        "in the mesh's order",
        [&] { mesh[{"tp", "dp"}]; });
    expect("meshtorch: a slice of a mesh needs at least one axis name\n  do: name the axes to keep",
           [&] { mesh[mt::DeviceMesh::Names{}]; });
  });
}

}  // namespace
}  // namespace meshtorch::testing

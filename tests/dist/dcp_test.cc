// Tensors and modules from folders that torch.distributed.checkpoint wrote; tests/golden/dcp was saved by two
// ranks, w split by rows.
#include <fstream>

#include "numbers.h"
#include "scratch_directory.h"

namespace meshtorch::testing {
namespace {

const char* const kFolder = MESHTORCH_DCP_FOLDER;

torch::Tensor saved_weight() { return torch::arange(15.0F).view({5, 3}); }

struct SavedNetImpl : torch::nn::Module {
  SavedNetImpl() {
    w = register_parameter("w", torch::zeros({5, 3}));
    b = register_parameter("b", torch::zeros({3}));
  }
  torch::Tensor w, b;
};

TEST(DcpFolder, HasTheTensorsThatPythonSaved) {
  const mt::dcp::Folder folder(kFolder);
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"model.b", "model.w", "number"}));
  EXPECT_EQ(folder.other_names(), std::vector<std::string>{"step"});
  EXPECT_EQ(folder.at("model.b").dtype, torch::kBFloat16);
  EXPECT_TRUE(torch::equal(folder.read("model.w"), saved_weight()));
  EXPECT_TRUE(torch::equal(folder.read("model.b"), torch::ones({3}, torch::kBFloat16)));
  EXPECT_EQ(folder.read("number").item<float>(), 2.5F);
}

TEST(DcpFolder, IsReadOntoAnyMesh) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"a", "b"});
    const mt::dcp::Folder folder(kFolder);
    for (const mt::Placements& placements :
         {mt::Placements{mt::Shard(0), mt::Shard(0)}, mt::Placements{mt::Shard(1), mt::Replicate()},
          mt::Placements{mt::Replicate(), mt::Shard(0)},
          mt::Placements{mt::StridedShard(0, 2), mt::Shard(0)}}) {
      const mt::DTensor target =
          mt::distribute_tensor(torch::zeros({5, 3}, torch::kDouble), mesh, placements);
      mt::dcp::load_into(target, folder, "model.w");
      EXPECT_TRUE(torch::equal(target.full_tensor(), saved_weight().to(torch::kDouble)));
    }
  });
}

TEST(DcpFolder, FillsTheParametersOfAModule) {
  on_ranks(2, [](int) {
    const auto net = std::make_shared<SavedNetImpl>();
    mt::distribute_parameter(net->w, mt::init_device_mesh(torch::kCPU, {2}), {mt::Shard(1)});
    const mt::dcp::Folder folder(kFolder);
    const auto name_in_files = [](const std::string& name) { return "model." + name; };
    EXPECT_NE(error_of([&] {
                mt::dcp::load_parameters(*net, folder, {.name_in_files = name_in_files});
              }).find("unknown to the module: number"),
              std::string::npos);
    mt::dcp::load_parameters(*net, folder, {.strict = false, .name_in_files = name_in_files});
    EXPECT_TRUE(torch::equal(mt::full_tensor(net->w), saved_weight()));
    EXPECT_TRUE(torch::equal(net->b, torch::ones({3})));
  });
}

TEST(DcpFolder, DamageIsAnErrorThatNamesTheFile) {
  on_ranks(1, [](int) {
    const auto expect_error = [](const std::string& words, const std::function<void()>& call) {
      const std::string error = error_of(call);
      EXPECT_NE(error.find(words), std::string::npos) << error;
    };
    expect_error("has no file .metadata", [] { mt::dcp::Folder("no such folder"); });
    const ScratchDirectory scratch("dcp");
    const std::string file = scratch / "__0_0.distcp";
    std::filesystem::copy(kFolder, scratch.path());
    const mt::dcp::Folder folder(scratch.path());
    expect_error("there is no tensor \"model.x\" among 3", [&] { folder.read("model.x"); });
    expect_error("has the shape [5, 3] in the file, and [2] in memory",
                 [&] { mt::dcp::load_into(torch::zeros({2}), folder, "model.w"); });
    std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).write("damaged", 7);
    expect_error("__0_0.distcp", [&] { folder.read("model.w"); });
    std::filesystem::resize_file(file, std::filesystem::file_size(file) / 2);
    expect_error("__0_0.distcp", [&] { folder.read("model.w"); });
  });
}

}  // namespace
}  // namespace meshtorch::testing

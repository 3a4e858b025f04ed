// Exports in Hugging Face's form: all ranks write one plain checkpoint.
#include <meshtorch/checkpoint.h>
#include <meshtorch/safetensors.h>

#include <fstream>

#include "numbers.h"
#include "scratch_directory.h"

namespace meshtorch::testing {
namespace {

namespace cp = mt::checkpoint;
namespace st = mt::safetensors;
using mt::DTensor;
using mt::Partial;
using mt::Replicate;
using mt::Shard;
using mt::StridedShard;

struct Piece {
  std::string name;
  std::vector<int64_t> shape;
  mt::Placements placements;
};

const std::vector<Piece> kPieces{
    {"rows", {5, 6}, {Shard(0), Replicate()}},  {"columns", {5, 7}, {Replicate(), Shard(1)}},
    {"both", {3, 8}, {Shard(1), Shard(1)}},     {"strided", {9, 2}, {StridedShard(0, 2), Shard(0)}},
    {"whole", {4}, {Replicate(), Replicate()}}, {"scalar", {}, {Replicate(), Replicate()}},
    {"empty", {0, 3}, {Shard(0), Replicate()}}};

st::NamedTensors tensors_on(const mt::DeviceMesh& mesh) {
  st::NamedTensors tensors;
  for (const Piece& piece : kPieces)
    tensors.emplace_back(piece.name, mt::distribute_tensor(numbers(piece.shape), mesh, piece.placements));
  return tensors;
}

TEST(ExportHf, WritesOneFileOfWholeTensors) {
  on_ranks(4, [](int) {
    const ScratchDirectory directory("export");
    st::NamedTensors tensors = tensors_on(mt::init_device_mesh(torch::kCPU, {2, 2}));
    tensors.emplace_back("pending", DTensor::from_local(torch::ones({2, 2}), line(4), {Partial()}));
    cp::export_hf(directory.path(), tensors, "{\"model_type\": \"llama\"}");
    const st::Files files(directory.path());
    EXPECT_EQ(files.names().size(), kPieces.size() + 1);
    EXPECT_EQ(files.metadata(), (st::Metadata{{"format", "pt"}}));
    for (const Piece& piece : kPieces)
      EXPECT_TRUE(is_equal(files.read(piece.name), numbers(piece.shape))) << piece.name;
    EXPECT_TRUE(is_equal(files.read("pending"), torch::full({2, 2}, 4.0F)));
    std::ifstream config(directory / "config.json");
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(config), {}), "{\"model_type\": \"llama\"}");
  });
}

TEST(ExportHf, SplitsLargeModelsAndReplacesOlderOnes) {
  on_ranks(4, [](int) {
    const ScratchDirectory directory("export_split");
    const st::NamedTensors tensors = tensors_on(mt::init_device_mesh(torch::kCPU, {2, 2}));
    const auto has = [&](const std::string& file) { return std::filesystem::exists(directory / file); };
    on_rank_0([&] { std::ofstream(directory / "model-of-mine.safetensors") << "x"; });
    cp::export_hf(directory.path(), tensors, "{}", {.max_file_bytes = 250});
    EXPECT_TRUE(has("model-00001-of-00003.safetensors") && has("model-00003-of-00003.safetensors"));
    EXPECT_TRUE(has("model.safetensors.index.json") && !has("model.safetensors"));
    for (const Piece& piece : kPieces)
      EXPECT_TRUE(is_equal(st::Files(directory.path()).read(piece.name), numbers(piece.shape))) << piece.name;
    mt::barrier();
    cp::export_hf(directory.path(), tensors, "{}");
    EXPECT_TRUE(has("model.safetensors") && !has("model.safetensors.index.json"));
    EXPECT_FALSE(has("model-00001-of-00003.safetensors"));
    EXPECT_TRUE(has("model-of-mine.safetensors"));
    mt::barrier();
    cp::export_hf(directory.path(), tensors, "{}", {.max_file_bytes = 250});
    EXPECT_FALSE(has("model.safetensors"));
    EXPECT_TRUE(is_equal(st::Files(directory.path()).read("rows"), numbers({5, 6})));
  });
}

TEST(ExportHf, TakesAModuleAndOtherNames) {
  on_ranks(2, [](int) {
    const ScratchDirectory directory("export_module");
    torch::nn::Linear layer(4, 6);
    layer->weight.set_data(numbers({6, 4}));
    layer->bias.set_data(numbers({6}));
    mt::replace_data(layer->weight, mt::distribute_tensor(layer->weight.detach(), line(2), {Shard(1)}));
    const auto renamed = [](const std::string& name) { return name == "bias" ? "" : "model." + name; };
    cp::export_hf(directory.path(), *layer, "{}", {.name_in_files = renamed});
    const st::Files files(directory.path());
    EXPECT_EQ(files.names(), std::vector<std::string>{"model.weight"});
    EXPECT_TRUE(is_equal(files.read("model.weight"), numbers({6, 4})));
  });
}

TEST(ExportHf, FailsOnEveryRankIfOneFails) {
  on_ranks(2, [](int rank) {
    const ScratchDirectory directory("export_fails");
    const DTensor tensor = mt::ones({4}, line(2), {Shard(0)});
    on_rank_0([&] { std::filesystem::create_directories(directory / "model.safetensors.tmp"); });
    EXPECT_EQ(
        error_of([&] { cp::export_hf(directory.path(), {{"w", tensor}}, "{}"); }),
        "meshtorch: cannot open the file: Is a directory\n  in: " + directory / "model.safetensors.tmp" +
            "\n  do: name a file in this directory" + (rank == 0 ? "" : "\n  on: rank 0"));
    EXPECT_EQ(
        error_of([&] { cp::export_hf(directory.path(), {{"w", tensor}, {"w", tensor}}, "{}"); }),
        "meshtorch: two tensors have the name \"w\"\n  in: saving them\n  do: give each a name of its own");
  });
}

}  // namespace
}  // namespace meshtorch::testing

// Safetensors files: writing, reading parts, loading shards and modules, and what is refused.
#include <meshtorch/safetensors.h>

#include <fstream>

#include "numbers.h"
#include "rank_data.h"
#include "scratch_directory.h"

namespace meshtorch::testing {
namespace {

namespace st = mt::safetensors;
using mt::DTensor;
using mt::Partial;
using mt::Replicate;
using mt::Shard;
using mt::StridedShard;

TEST(Safetensors, EveryTypeAndShapeIsReadAsItWasWritten) {
  on_ranks(1, [](int) {
    const ScratchDirectory directory("types");
    st::NamedTensors tensors;
    for (const auto type : {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf,
                            at::kBFloat16, at::kFloat, at::kDouble})
      tensors.emplace_back(c10::toString(type), numbers({3, 5}, type));
    tensors.emplace_back("complex", torch::complex(numbers({4}), numbers({4}, at::kFloat, 1)));
    tensors.emplace_back("scalar", torch::tensor(2.5));
    tensors.emplace_back("empty", torch::empty({0, 3}));
    tensors.emplace_back("transposed", numbers({3, 5}).t());
    st::write(directory / "a.safetensors", tensors, {{"format", "pt"}});
    const st::Files files(directory / "a.safetensors");
    EXPECT_EQ(files.metadata(), (st::Metadata{{"format", "pt"}}));
    ASSERT_EQ(files.names().size(), tensors.size());
    for (const auto& [name, tensor] : tensors) {
      EXPECT_EQ(files.at(name).dtype, tensor.scalar_type());
      EXPECT_TRUE(is_equal(files.read(name), tensor)) << name;
    }
  });
}

TEST(Safetensors, APartIsReadByOffsetsAndSizes) {
  on_ranks(1, [](int) {
    const ScratchDirectory directory("parts");
    const torch::Tensor whole = numbers({4, 5, 6});
    st::write(directory / "a.safetensors", {{"w", whole}, {"scalar", torch::tensor(1)}});
    const st::Files files(directory / "a.safetensors");
    const auto expected = [&](at::IntArrayRef offsets, at::IntArrayRef sizes) {
      torch::Tensor part = whole;
      for (int64_t d = 0; d < 3; ++d) part = part.narrow(d, offsets[d], sizes[d]);
      return part;
    };
    for (const auto& [offsets, sizes] :
         std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>>{{{0, 0, 0}, {4, 5, 6}},
                                                                            {{1, 0, 0}, {2, 5, 6}},
                                                                            {{0, 2, 0}, {4, 2, 6}},
                                                                            {{3, 1, 2}, {1, 3, 3}},
                                                                            {{0, 0, 5}, {4, 5, 1}},
                                                                            {{4, 0, 0}, {0, 5, 6}}})
      EXPECT_TRUE(is_equal(files.read("w", offsets, sizes), expected(offsets, sizes)));
    EXPECT_TRUE(is_equal(files.read("scalar", {}, {}), torch::tensor(1)));
    EXPECT_EQ(
        error_of([&] { files.read("w", {0, 0, 1}, {4, 5, 6}); }),
        "meshtorch: the part at [0, 0, 1] of sizes [4, 5, 6] is not inside tensor \"w\" of shape [4, 5, 6]"
        "\n  in: " +
            directory / "a.safetensors" + "\n  do: give an offset and a size for each dim, inside the shape");
    EXPECT_EQ(error_of([&] { files.read("v"); }),
              "meshtorch: there is no tensor \"v\" among 2\n  in: " + directory / "a.safetensors" +
                  "\n  do: use one of names()");
  });
}

class SafetensorsOnRanks : public OnRanks {};
INSTANTIATE_TEST_SUITE_P(, SafetensorsOnRanks, ::testing::Values(1, 2, 3, 4), ranks_in_name);

TEST_P(SafetensorsOnRanks, EachRankLoadsItsShard) {
  on_all([](int, int n) {
    const ScratchDirectory directory("shards");
    const torch::Tensor whole = numbers({5, 7});
    on_rank_0([&] { st::write(directory / "a.safetensors", {{"w", whole}}); });
    const st::Files files(directory / "a.safetensors");
    for (const mt::Placement& p : {Shard(0), Shard(1), Replicate(), StridedShard(1, 2)}) {
      for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
        const DTensor target = mt::zeros({5, 7}, line(n), {p}, type);
        st::load_into(target, files, "w");
        const DTensor expected = mt::distribute_tensor(whole.to(type), line(n), {p});
        EXPECT_TRUE(is_equal(target.to_local(), expected.to_local())) << p;
      }
    }
    const torch::Tensor plain = torch::zeros({7, 5}).t();
    st::load_into(plain, files, "w");
    EXPECT_TRUE(is_equal(plain, whole));
  });
}

TEST(Safetensors, ShardsOfTwoAxesAreLoaded) {
  on_ranks(4, [](int) {
    const ScratchDirectory directory("two_axes");
    const torch::Tensor whole = numbers({5, 6, 3});
    on_rank_0([&] { st::write(directory / "a.safetensors", {{"w", whole}}); });
    const st::Files files(directory / "a.safetensors");
    const auto mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    for (const mt::Placements& p : std::vector<mt::Placements>{{Shard(0), Shard(0)},
                                                               {Shard(0), Shard(2)},
                                                               {StridedShard(1, 2), Shard(1)},
                                                               {Replicate(), Shard(1)},
                                                               {Shard(2), Replicate()}}) {
      const DTensor target = mt::zeros({5, 6, 3}, mesh, p);
      st::load_into(target, files, "w");
      EXPECT_TRUE(is_equal(target.to_local(), mt::distribute_tensor(whole, mesh, p).to_local()));
    }
  });
}

TEST(Safetensors, ATargetOnTheMetaDeviceIsGivenMemoryForItsShardOnly) {
  on_ranks(2, [](int rank) {
    const ScratchDirectory directory("meta");
    on_rank_0([&] {
      st::write(directory / "a.safetensors", {{"weight", numbers({6, 4})}, {"bias", numbers({6})}});
    });
    torch::nn::Linear layer(4, 6);
    for (const torch::Tensor& p : layer->parameters())
      mt::replace_data(p, torch::empty_like(p, p.options().device(torch::kMeta)));
    mt::replace_data(layer->weight, mt::distribute_tensor(layer->weight.detach(), line(2), {Shard(0)}));
    st::load_parameters(*layer, st::Files(directory / "a.safetensors"));
    EXPECT_TRUE(is_equal(DTensor(layer->weight).to_local().detach(), numbers({6, 4}).chunk(2)[rank]));
    EXPECT_TRUE(is_equal(layer->bias.detach(), numbers({6})));
    EXPECT_TRUE(layer->weight.requires_grad());
  });
}

TEST(Safetensors, LargeTensorsOfAnotherTypeAreConvertedPieceByPiece) {
  on_ranks(1, [](int) {
    const ScratchDirectory directory("large");
    const torch::Tensor whole = torch::arange(3 << 20, torch::kInt).view({1, 3, 1 << 20});
    st::write(directory / "a.safetensors", {{"w", whole}});
    const torch::Tensor target = torch::zeros({1, 3, 1 << 20}, torch::kLong);
    st::load_into(target, st::Files(directory / "a.safetensors"), "w");
    EXPECT_TRUE(is_equal(target, whole.to(torch::kLong)));
  });
}

TEST(Safetensors, ADirectoryHasOneFileOrAnIndexOfSeveral) {
  on_ranks(2, [](int) {
    const ScratchDirectory directory("index");
    on_rank_0([&] {
      st::write(directory / "one.safetensors", {{"a", numbers({3})}, {"left out", numbers({2})}});
      st::write(directory / "two.safetensors", {{"b", numbers({4})}});
      std::ofstream(directory / "model.safetensors.index.json")
          << R"({"metadata": {}, "weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})";
    });
    const st::Files files(directory.path());
    EXPECT_EQ(files.names(), (std::vector<std::string>{"a", "b"}));
    EXPECT_TRUE(is_equal(files.read("b"), numbers({4})));
    mt::barrier();
    on_rank_0([&] { st::write(directory / "model.safetensors", {{"c", numbers({5})}}); });
    EXPECT_EQ(st::Files(directory.path()).names(), std::vector<std::string>{"c"});
  });
}

TEST(Safetensors, WrongDirectoriesAreRefusedOnEveryRank) {
  on_ranks(2, [](int) {
    const ScratchDirectory directory("wrong");
    const auto open = [&] { return error_of([&] { st::Files files(directory.path()); }); };
    const auto with_index = [&](const std::string& text) {
      mt::barrier();
      on_rank_0([&] { std::ofstream(directory / "model.safetensors.index.json") << text; });
      return open();
    };
    EXPECT_EQ(open(),
              "meshtorch: the directory has neither model.safetensors nor model.safetensors.index.json\n"
              "  in: " +
                  directory.path() +
                  "\n  do: name a directory with a Hugging Face model, or one .safetensors file");
    const std::string where = "\n  in: " + directory / "model.safetensors.index.json" + "\n  do: ";
    EXPECT_EQ(with_index(R"({"weight_map": {"w": "a.safetensors"}})"),
              "meshtorch: the index names the file \"a.safetensors\" for tensor \"w\", but it is missing" +
                  where + "copy or download the missing file");
    on_rank_0([&] { st::write(directory / "a.safetensors", {{"v", numbers({3})}}); });
    EXPECT_EQ(open(), "meshtorch: the index says that tensor \"w\" is in \"a.safetensors\", but it is not" +
                          where + "download index and files of one model");
    EXPECT_EQ(with_index(R"({"weight_map": {"w": "../a.safetensors"}})"),
              "meshtorch: the index puts tensor \"w\" into \"../a.safetensors\", which is no file beside it" +
                  where + "name files of the same directory");
    EXPECT_EQ(with_index(R"({"weight_map": {}})"),
              "meshtorch: the index names no tensor" + where + "write it again; it is damaged");
    EXPECT_NE(with_index("{").find("meshtorch: the index cannot be read: "), std::string::npos);
    EXPECT_EQ(error_of([&] { st::Files files(directory / "b.safetensors"); }),
              "meshtorch: cannot open the file: No such file or directory\n  in: " +
                  directory / "b.safetensors" + "\n  do: check the path");
    EXPECT_EQ(error_of([&] { st::write(directory / "no/b.safetensors", {}); }),
              "meshtorch: cannot create the file: No such file or directory\n  in: " +
                  directory / "no/b.safetensors.tmp" + "\n  do: check the path");
  });
}

TEST(Safetensors, AWrongShapeIsAnErrorOnEveryRank) {
  on_ranks(2, [](int) {
    const ScratchDirectory directory("shape");
    on_rank_0([&] { st::write(directory / "a.safetensors", {{"w", numbers({5, 4})}}); });
    const st::Files files(directory / "a.safetensors");
    const DTensor target = mt::zeros({4, 5}, line(2), {Shard(0)});
    EXPECT_EQ(error_of([&] { st::load_into(target, files, "w"); }),
              "meshtorch: tensor \"w\" has the shape [5, 4] in the file, and [4, 5] in memory\n  in: " +
                  directory / "a.safetensors" + "\n  do: build the model with the sizes of the file");
    EXPECT_EQ(
        error_of([&] { st::load_into(mt::zeros({5, 4}, line(2), {Partial()}), files, "w"); }),
        "meshtorch: tensor \"w\" is a pending reduction, [P(sum)]: no rank has its values\n  in: saving or "
        "loading it\n  do: redistribute it to Replicate() or Shard(dim) first");
    EXPECT_EQ(error_of([&] { st::write(directory / "b.safetensors", {{"w", target}}); }),
              "meshtorch: tensor \"w\" is distributed, and one rank writes plain tensors\n  in: " +
                  directory / "b.safetensors" + "\n  do: use checkpoint::save or checkpoint::export_hf");
  });
}

TEST(Safetensors, MissingAndUnexpectedTensorsAreListed) {
  on_ranks(2, [](int) {
    const ScratchDirectory directory("strict");
    on_rank_0([&] {
      st::write(directory / "a.safetensors", {{"m.weight", numbers({3, 2})}, {"extra", numbers({1})}});
    });
    const st::Files files(directory / "a.safetensors");
    torch::nn::Linear layer(2, 3);
    const torch::Tensor before = layer->weight.detach().clone();
    const auto in_files = [](const std::string& name) { return "m." + name; };
    EXPECT_EQ(error_of([&] { st::load_parameters(*layer, files, {.name_in_files = in_files}); }),
              "meshtorch: the files do not hold the tensors of the module\n  missing in the files: bias\n  "
              "unknown to "
              "the module: extra\n  in: " +
                  directory / "a.safetensors" +
                  "\n  do: load the files of this model, give name_in_files, or set strict = false");
    EXPECT_TRUE(is_equal(layer->weight.detach(), before));
    const st::LoadReport report =
        st::load_parameters(*layer, files, {.strict = false, .name_in_files = in_files});
    EXPECT_EQ(report.missing, std::vector<std::string>{"bias"});
    EXPECT_EQ(report.unexpected, std::vector<std::string>{"extra"});
    EXPECT_TRUE(is_equal(layer->weight.detach(), numbers({3, 2})));
  });
}

TEST(Safetensors, ATiedParameterNeedsOneOfItsNames) {
  on_ranks(1, [](int) {
    const ScratchDirectory directory("tied");
    st::write(directory / "a.safetensors", {{"in", numbers({3, 2})}});
    struct Tied : torch::nn::Module {
      torch::Tensor in = register_parameter("in", torch::zeros({3, 2}));
      torch::Tensor out = register_parameter("out", in);
    } model;
    st::load_parameters(model, st::Files(directory / "a.safetensors"));
    EXPECT_TRUE(is_equal(model.out.detach(), numbers({3, 2})));
  });
}

}  // namespace
}  // namespace meshtorch::testing

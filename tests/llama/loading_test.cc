// Loading checkpoints onto meshes, and what is said of those that are broken: the same on every rank.
#include "parallelize.h"

#include <meshtorch/checkpoint.h>

#include "checkpoint_files.h"
#include "scratch_directory.h"

namespace meshtorch::testing {
namespace {

// The error that each of two ranks gets.
void expect_error(const TemporaryDirectory& directory, const std::string& expected) {
  on_mesh(1, 2, [&](const mt::DeviceMesh& mesh) {
    EXPECT_EQ(error_of([&] { llama::load_model(directory.path(), mesh, torch::kFloat); }), expected);
  });
}
// As above, of which only parts are known.
void expect_error_with(const TemporaryDirectory& directory, const std::vector<std::string>& parts) {
  on_mesh(1, 2, [&](const mt::DeviceMesh& mesh) {
    const std::string error = error_of([&] { llama::load_model(directory.path(), mesh, torch::kFloat); });
    for (const std::string& part : parts)
      EXPECT_NE(error.find(part), std::string::npos) << part << "\nin " << error;
  });
}

TEST(LlamaLoading, EachRankHoldsItsShards) {
  const TemporaryDirectory directory;
  const llama::Config config = tiny_config(6, 3, 25);
  write_checkpoint(directory.path(), config);
  const auto expected = filled_model(config, torch::kFloat)->named_parameters();
  on_mesh(1, 2, [&](const mt::DeviceMesh& mesh) {
    const llama::Llama model = llama::load_model(directory.path(), mesh, torch::kFloat);
    for (const auto& item : model->named_parameters()) {
      EXPECT_TRUE(is_equal(whole(item.value()), expected[item.key()].detach())) << item.key();
    }
    const mt::DTensor embedding(model->model->embed_tokens->weight.detach());
    EXPECT_EQ(embedding.to_local().size(0), mesh.get_local_rank("tp") == 0 ? 13 : 12);
  });
}

TEST(LlamaLoading, ShardsOfDataAndTensorParallelismComeStraightFromTheFiles) {
  const TemporaryDirectory directory;
  const llama::Config config = tiny_config(4, 2, 24);
  write_checkpoint(directory.path(), config);
  const auto expected = filled_model(config, torch::kFloat)->named_parameters();
  for (const llama::MeshShape& shape :
       {llama::MeshShape{.dp_shard = 4}, llama::MeshShape{.tp = 2, .dp_shard = 2},
        llama::MeshShape{.dp_shard = 2, .dp_replicate = 2}, llama::MeshShape{.dp_shard = 3}}) {
    on_mesh(shape, [&](const mt::DeviceMesh& mesh) {
      const llama::Llama model = llama::load_model(directory.path(), mesh, torch::kFloat);
      std::int64_t held = 0, all = 0;
      for (const auto& item : model->named_parameters()) {
        EXPECT_TRUE(is_equal(whole(item.value()), expected[item.key()].detach()))
            << item.key() << " on " << shape.to_string();
        held += mt::to_local(item->detach()).numel();
        all += item->numel();
      }
      EXPECT_LE(held, all / (shape.dp_shard * shape.tp) + all / 20) << shape.to_string();
    });
  }
}

TEST(LlamaLoading, TensorsThatTheModelComputesItselfAreSkipped) {
  const TemporaryDirectory directory;
  llama::Config config = tiny_config();
  config.tie_word_embeddings = true;
  auto tensors = tensors_of(filled_model(config, torch::kFloat));
  tensors.emplace_back("lm_head.weight", torch::zeros({config.vocab_size, config.hidden_size}));
  tensors.emplace_back("model.layers.0.self_attn.rotary_emb.inv_freq", torch::zeros({2}));
  write_checkpoint(directory.path(), config, tensors);
  on_mesh(1, 2, [&](const mt::DeviceMesh& mesh) {
    const llama::Llama model = llama::load_model(directory.path(), mesh, torch::kFloat);
    EXPECT_TRUE(is_equal(whole(model->model->embed_tokens->weight), tensors[0].second));
  });
}

TEST(LlamaLoading, AMissingTensorIsNamed) {
  const TemporaryDirectory directory;
  const llama::Config config = tiny_config();
  auto tensors = tensors_of(filled_model(config, torch::kFloat));
  std::erase_if(tensors, [](const auto& item) { return item.first == "model.layers.1.mlp.up_proj.weight"; });
  write_checkpoint(directory.path(), config, tensors);
  expect_error(
      directory,
      "meshtorch-llama: the checkpoint lacks the tensor \"model.layers.1.mlp.up_proj.weight\"\n  in: " +
          directory.path().string() +
          "\n  do: fetch the model again, and check that config.json belongs to it");
}

TEST(LlamaLoading, AnUnknownTensorIsNamed) {
  const TemporaryDirectory directory;
  const llama::Config config = tiny_config();
  auto tensors = tensors_of(filled_model(config, torch::kFloat));
  tensors.emplace_back("model.layers.0.self_attn.q_proj.bias", torch::zeros({16}));
  write_checkpoint(directory.path(), config, tensors);
  expect_error(directory,
               "meshtorch-llama: the model has no tensor \"model.layers.0.self_attn.q_proj.bias\"\n  in: " +
                   (directory / "model.safetensors").string() +
                   "\n  do: check that config.json belongs to these weights (attention_bias, mlp_bias, "
                   "num_hidden_layers, tie_word_embeddings)");
}

TEST(LlamaLoading, AWrongShapeIsNamed) {
  const TemporaryDirectory directory;
  llama::Config config = tiny_config();
  auto tensors = tensors_of(filled_model(config, torch::kFloat));
  config.vocab_size += 1;
  write_checkpoint(directory.path(), config, tensors);
  expect_error_with(directory,
                    {"model.embed_tokens.weight", "[24, 16]", "[25, 16]", "model.safetensors", "do:"});
}

TEST(LlamaLoading, BrokenFilesAreNamed) {
  const TemporaryDirectory directory;
  write_checkpoint(directory.path(), tiny_config());
  const auto file = directory / "model.safetensors";
  const std::string good = read_text(file);
  write_text(file, good.substr(0, good.size() - 5));
  expect_error_with(directory, {file.string(), "do:"});
  write_text(file, std::string(7, '\xff') + good.substr(7));
  expect_error_with(directory, {file.string(), "do:"});
  write_text(file, good.substr(0, 8) + "]" + good.substr(9));
  expect_error_with(directory, {file.string(), "do:"});
  std::filesystem::remove(file);
  expect_error_with(directory, {directory.path().string(), "do:"});
}

TEST(LlamaLoading, HeadsOfKeysThatRanksShareComeFromTheSameFilesAndGoThere) {
  const TemporaryDirectory directory;
  const llama::Config config = tiny_config(8, 2, 25);
  write_checkpoint(directory.path(), config);
  const auto expected = filled_model(config, torch::kFloat)->named_parameters();
  const auto expect_weights = [&](const llama::Llama& model, double factor) {
    for (const auto& item : model->named_parameters()) {
      EXPECT_TRUE(is_equal(whole(item.value()), expected[item.key()].detach() * factor)) << item.key();
    }
  };
  const torch::Tensor ids_BS = tokens(2, 6, config);
  const auto logits_of = [&](llama::Llama model, const mt::DeviceMesh& mesh) {
    return whole(model(llama::distribute_batch(ids_BS, mesh)));
  };
  on_mesh(1, 4, [&](const mt::DeviceMesh& mesh) {
    llama::Llama model = llama::load_model(directory.path(), mesh, torch::kFloat);
    expect_weights(model, 1);
    const ScratchDirectory scratch("shared_key_heads");
    const torch::NoGradGuard no_grad;
    // Unchanged, what is exported is what was loaded.
    mt::checkpoint::export_hf(scratch / "unchanged", *model, config.to_json());
    const mt::safetensors::Files loaded(directory.path());
    const mt::safetensors::Files unchanged(scratch / "unchanged");
    EXPECT_EQ(unchanged.names().size(), loaded.names().size());
    for (const std::string& name : loaded.names())
      EXPECT_TRUE(is_equal(unchanged.read(name), loaded.read(name))) << name;
    for (torch::Tensor& parameter : model->parameters()) parameter.mul_(2);
    mt::checkpoint::export_hf(scratch / "exported", *model, config.to_json());
    mt::checkpoint::save(scratch / "saved", mt::checkpoint::State().add("model", *model));
    // Two ranks each, which share no heads, read both.
    const mt::DeviceMesh other_mesh = llama::make_mesh({.dp = 2, .tp = 2});
    llama::Llama other = llama::load_model(scratch / "exported", other_mesh, torch::kFloat);
    expect_weights(other, 2);
    for (torch::Tensor& parameter : other->parameters()) parameter.zero_();
    mt::checkpoint::load(scratch / "saved", mt::checkpoint::State().add("model", *other));
    expect_weights(other, 2);
    EXPECT_TRUE(is_close(logits_of(other, other_mesh), logits_of(model, mesh), 1e-5));
    // And ranks of which each has all heads.
    const mt::DeviceMesh whole_mesh = llama::make_mesh({.dp = 4, .tp = 1});
    llama::Llama whole_model = filled_model(config, torch::kFloat);
    llama::parallelize(whole_model, whole_mesh);
    mt::checkpoint::load(scratch / "saved", mt::checkpoint::State().add("model", *whole_model));
    expect_weights(whole_model, 2);
    EXPECT_TRUE(is_close(logits_of(whole_model, whole_mesh), logits_of(model, mesh), 1e-5));
  });
}

TEST(LlamaLoading, TypesHaveNames) {
  EXPECT_EQ(llama::dtype_of("bfloat16"), torch::kBFloat16);
  EXPECT_EQ(error_of([] { llama::dtype_of("int4"); }),
            "meshtorch-llama: \"int4\" is no type of weights\n  where: --dtype or \"dtype\" in config.json\n"
            "  do: use float32, float64, bfloat16 or float16");
}

}  // namespace
}  // namespace meshtorch::testing

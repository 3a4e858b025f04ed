// config.json: all forms in which transformers wrote it, and what is said of those that cannot be used.
#include "config.h"

#include <sys/stat.h>

#include "../dist/ranks.h"
#include "../mutations.h"
#include "checkpoint_files.h"

namespace meshtorch::testing {
namespace {

using llama::Config;

std::string with(const std::string& fields) {
  return R"({"model_type": "llama", "vocab_size": 10, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1,
             "num_attention_heads": 2)" +
         (fields.empty() ? "" : ", " + fields) + "}";
}
Config read(const std::string& fields) { return Config::from_json(with(fields), "config.json"); }
std::string error_in(const std::string& text) {
  return error_of([&] { Config::from_json(text, "config.json"); });
}

TEST(LlamaConfig, MutationsAreReadOrRefused) {
  const std::string rope = R"("rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_theta": 5e5)";
  expect_read_or_refused({with(""), with(rope), read(rope).to_json()},
                         [](const std::string& text) { Config::from_json(text, "config.json"); });
}

TEST(LlamaConfig, FieldsThatAreMissingFollowFromOthers) {
  const Config config = read("");
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 4);
  EXPECT_EQ(config.rope.type, "default");
  EXPECT_EQ(config.rope.theta, 10000);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_TRUE(config.eos_token_ids.empty());
}

TEST(LlamaConfig, AbsurdSizesAreRefused) {
  int seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(MESHTORCH_DAMAGED_FILES)) {
    if (!entry.path().filename().string().starts_with("config_of_")) continue;
    ++seen;
    const std::string error = error_of([&] { Config::from_path(entry.path()); });
    EXPECT_TRUE(error.starts_with("meshtorch-llama: \"")) << entry.path() << error;
    EXPECT_NE(error.find("\n  in: " + entry.path().string() + "\n  do: "), std::string::npos) << error;
  }
  EXPECT_EQ(seen, 8);
}

TEST(LlamaConfig, DeepNestingAndPipesAreRefused) {
  const std::string deep = std::string(66'000, '[') + std::string(66'000, ']');
  for (const std::string& text : {deep, with(R"("vocab_size": )" + deep), with(R"("eos_token_id": )" + deep)})
    EXPECT_NE(error_in(text).find("nested deeper than 64 levels"), std::string::npos);
  const TemporaryDirectory directory;
  const std::string pipe = (directory / "config.json").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_NE(error_of([&] { Config::from_path(directory.path()); }).find("cannot read the configuration"),
            std::string::npos);
}

TEST(LlamaConfig, NullMeansMissing) {
  const Config config = read(R"("head_dim": null, "rope_scaling": null, "eos_token_id": null)");
  EXPECT_EQ(config.head_dim, 4);
  EXPECT_EQ(config.rope.type, "default");
}

TEST(LlamaConfig, RotaryFieldsOfAllVersions) {
  for (
      const char* fields :
      {R"("rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 2.0})",
       R"("rope_theta": 500.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0})",
       R"("rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0})",
       R"("rope_theta": 1.0, "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0})"}) {
    const Config config = read(fields);
    EXPECT_EQ(config.rope.type, "linear") << fields;
    EXPECT_EQ(config.rope.theta, 500) << fields;
    EXPECT_EQ(config.rope.factor, 2) << fields;
  }
}

TEST(LlamaConfig, OneOrSeveralEndTokens) {
  EXPECT_EQ(read(R"("eos_token_id": 2)").eos_token_ids, (std::vector<int64_t>{2}));
  EXPECT_EQ(read(R"("eos_token_id": [2, 3])").eos_token_ids, (std::vector<int64_t>{2, 3}));
  const TemporaryDirectory directory;
  write_text(directory / "config.json", with(R"("eos_token_id": 2)"));
  write_text(directory / "generation_config.json", R"({"eos_token_id": [2, 5]})");
  EXPECT_EQ(Config::from_path(directory.path()).eos_token_ids, (std::vector<int64_t>{2, 5}));
}

TEST(LlamaConfig, WhatIsWrittenIsRead) {
  Config config = tiny_config(6, 3);
  config.rope = {"llama3", 500000, 8, 1, 4, 16};
  config.eos_token_ids = {1, 2};
  config.mlp_bias = config.tie_word_embeddings = true;
  const Config again = Config::from_json(config.to_json(), "text");
  EXPECT_EQ(again.to_json(), config.to_json());
  EXPECT_EQ(again.rope.original_max_positions, 16);
}

TEST(LlamaConfig, OtherArchitecturesAreErrors) {
  EXPECT_EQ(
      error_in(R"({"model_type": "mistral", "architectures": ["MistralForCausalLM"]})"),
      "meshtorch-llama: unknown architecture: model_type \"mistral\", architectures [MistralForCausalLM]\n"
      "  in: config.json\n  do: give a model of model_type \"llama\" with LlamaForCausalLM");
  EXPECT_NE(error_in("{}").find("unknown architecture: model_type \"\""), std::string::npos);
  EXPECT_EQ(error_in(with(R"("hidden_act": "gelu")")),
            "meshtorch-llama: hidden_act \"gelu\" is not known, \"silu\" is\n  in: config.json\n"
            "  do: give a model with SwiGLU");
}

TEST(LlamaConfig, UnknownRotationsAreErrors) {
  EXPECT_EQ(error_in(with(R"("rope_scaling": {"rope_type": "yarn", "factor": 4.0})")),
            "meshtorch-llama: rope type \"yarn\" is not known; default, linear, dynamic and llama3 are\n"
            "  in: config.json, rope_scaling\n  do: give a model with one of these");
  EXPECT_EQ(error_in(with(R"("rope_parameters": {"rope_type": "linear"})")),
            "meshtorch-llama: the field \"factor\" is missing\n  in: config.json, rope_parameters\n"
            "  do: use the config.json that belongs to the model");
  EXPECT_EQ(error_in(with(R"("partial_rotary_factor": 0.5)")),
            "meshtorch-llama: partial_rotary_factor 0.5 is not known, 1 is\n  in: config.json, rope_scaling\n"
            "  do: give a model that rotates whole heads");
}

TEST(LlamaConfig, WrongFieldsAreNamed) {
  EXPECT_EQ(error_in(R"({"model_type": "llama", "vocab_size": 10})"),
            "meshtorch-llama: the field \"hidden_size\" is missing\n  in: config.json\n"
            "  do: use the config.json that belongs to the model");
  EXPECT_EQ(error_in(with(R"("num_key_value_heads": "two")")),
            "meshtorch-llama: \"num_key_value_heads\" cannot be \"two\"\n  in: config.json\n"
            "  do: use the config.json that belongs to the model");
  EXPECT_EQ(error_in(with(R"("max_position_embeddings": 0)")),
            "meshtorch-llama: \"max_position_embeddings\" has to be positive, it is 0\n  in: config.json\n"
            "  do: use the config.json that belongs to the model");
  EXPECT_EQ(error_in(with(R"("num_key_value_heads": 3)")),
            "meshtorch-llama: 2 attention heads cannot share 3 heads of keys and values\n  in: config.json\n"
            "  do: num_attention_heads has to be a multiple of num_key_value_heads");
  EXPECT_EQ(error_in(with(R"("head_dim": 3)")),
            "meshtorch-llama: a head of odd size 3 cannot be rotated\n  in: config.json\n  do: give an even "
            "head_dim");
  EXPECT_EQ(
      error_in(with(R"("hidden_size": 9)")),
      "meshtorch-llama: a width of 9 cannot be cut into 2 heads\n  in: config.json\n  do: hidden_size has "
      "to be a multiple of num_attention_heads, or give head_dim");
  EXPECT_EQ(read(R"("hidden_size": 9, "head_dim": 4)").head_dim, 4);
  EXPECT_EQ(error_in(with(R"("eos_token_id": "</s>")")),
            "meshtorch-llama: \"eos_token_id\" cannot be \"</s>\"\n  in: config.json\n"
            "  do: give an integer or a list of them");
  EXPECT_EQ(error_in(with(R"("eos_token_id": [2, 18446744073709551615])")),
            "meshtorch-llama: \"eos_token_id\" cannot be [2,18446744073709551615]\n  in: config.json\n"
            "  do: give an integer or a list of them");
}

TEST(LlamaConfig, FilesThatAreNoJsonAreErrors) {
  EXPECT_NE(error_in("{\"model_type\": ").find("meshtorch-llama: this is not JSON: "), std::string::npos);
  EXPECT_EQ(error_in("[1]"),
            "meshtorch-llama: a configuration has to be an object, this is array\n  in: config.json\n"
            "  do: give a config.json of transformers");
  EXPECT_EQ(error_of([] { Config::from_path("/nowhere/at/all"); }),
            "meshtorch-llama: cannot read the configuration\n  in: /nowhere/at/all\n"
            "  do: give a model's directory, or its config.json");
}

}  // namespace
}  // namespace meshtorch::testing

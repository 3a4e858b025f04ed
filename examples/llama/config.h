// What a Llama model is, as Hugging Face's config.json tells it: the first thing every subcommand reads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace llama {

// How the angles of the rotary embedding follow from the position.
struct RopeConfig {
  std::string type = "default";  // or "linear", "dynamic", "llama3"
  double theta = 10000;
  double factor = 1;
  // Of "llama3": wavelengths longer than original_max_positions / low_freq_factor are stretched by factor,
  // those shorter than original_max_positions / high_freq_factor are kept.
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  std::int64_t original_max_positions = 0;  // 0: max_positions
};

// Far above any model that was built, and low enough that no count of elements overflows.
constexpr std::int64_t kMaxWidth = 1 << 22;
constexpr std::int64_t kMaxVocabulary = 1 << 26;
constexpr std::int64_t kMaxLayers = 1024;
constexpr std::int64_t kMaxPositions = std::int64_t{1} << 32;

// What errors say of heads: where their sizes come from, a file or options of a command, and what to do.
struct HeadErrors {
  std::string source;
  std::string multiple_of_heads = "hidden_size has to be a multiple of num_attention_heads, or give head_dim";
  std::string multiple_of_kv_heads = "num_attention_heads has to be a multiple of num_key_value_heads";
  std::string even_heads = "give an even head_dim";
};

struct Config {
  std::int64_t vocab_size = 32000;
  std::int64_t hidden_size = 4096;
  std::int64_t intermediate_size = 11008;
  std::int64_t num_layers = 32;
  std::int64_t num_heads = 32;
  std::int64_t num_kv_heads = 32;
  std::int64_t head_dim = 128;  // 0, until settle_heads(): what the width gives each head
  std::int64_t max_positions = 2048;
  double rms_norm_eps = 1e-6;
  bool attention_bias = false;
  bool mlp_bias = false;
  bool tie_word_embeddings = false;
  RopeConfig rope = {};
  double initializer_range = 0.02;
  std::string dtype = "float32";  // of the weights in the files
  std::vector<std::int64_t> eos_token_ids = {};

  // Reads config.json in any form that `transformers` wrote. `source` names the text in errors.
  static Config from_json(const std::string& text, const std::string& source);
  // Reads a config.json, or that of a model's directory; generation_config.json beside it adds end tokens.
  static Config from_path(const std::filesystem::path& path);
  // Fills in a head_dim of 0, and refuses heads that do not go together.
  void settle_heads(const HeadErrors& errors);
  // A config.json that `transformers` and from_json() read.
  std::string to_json() const;
};

}  // namespace llama

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

struct Config {
  std::int64_t vocab_size = 32000;
  std::int64_t hidden_size = 4096;
  std::int64_t intermediate_size = 11008;
  std::int64_t num_layers = 32;
  std::int64_t num_heads = 32;
  std::int64_t num_kv_heads = 32;
  std::int64_t head_dim = 128;
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
  // A config.json that `transformers` and from_json() read.
  std::string to_json() const;
};

}  // namespace llama

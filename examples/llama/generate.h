// Generation: prompts in, new tokens out, with a cache whose heads are split over tp.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "parallelize.h"

namespace llama {

using Ids = std::vector<std::int64_t>;

// "1,5,7"
Ids parse_ids(const std::string& text);
// The bytes of a text: the tokens of a model of bytes.
Ids bytes_of(const std::string& text);
inline bool is_byte(std::int64_t id) { return id < 256; }
// What is no byte appears as <id>.
std::string text_of(const Ids& ids);
// Throws if the files of the model say that its tokens are not bytes.
void check_model_of_bytes(const std::filesystem::path& model);

// Throws if a prompt is empty or has a token that the vocabulary has not.
void check_prompts(const std::vector<Ids>& prompts, std::int64_t vocab_size);

// Prompts of unequal length get padding on the left, so that all end at the same position.
struct PromptBatch {
  torch::Tensor ids_BS;
  torch::Tensor pads_B;  // undefined if no row has padding
};
PromptBatch make_batch(const std::vector<Ids>& prompts);

// How the next token is chosen from a row of logits: greedy, or drawn from what temperature, top-k and top-p
// leave.
struct SamplingOptions {
  bool greedy = false;
  double temperature = 1;
  std::int64_t top_k = 0;  // 0: all
  double top_p = 1;        // the most probable tokens that together reach this probability
  std::uint64_t seed = 0;
};

// Throws if a value makes no sense.
void check(const SamplingOptions& options);

// One for each row of a batch, so that what a prompt gives does not depend on the prompts beside it. Equal on
// every rank.
class Sampler {
 public:
  Sampler(const SamplingOptions& options, std::uint64_t row);
  std::int64_t pick(std::span<const float> logits_V);

 private:
  SamplingOptions options_;
  std::mt19937_64 random_;
};

struct GenerateOptions {
  std::int64_t max_new_tokens = 64;
  SamplingOptions sampling = {};
  // Called on every rank for each new token, in the order of their making.
  std::function<void(std::size_t row, std::int64_t id)> on_token = {};
};

// The new tokens of each prompt. A row ends with the first end token of the configuration, which is its last.
// The prompts' rows are split over dp. All ranks call it with the same arguments and get the same.
std::vector<Ids> generate(Llama model, const meshtorch::DeviceMesh& mesh, const std::vector<Ids>& prompts,
                          const GenerateOptions& options);

}  // namespace llama

// Prompts as token ids: read from the command line, checked, and laid side by side in one batch.
#pragma once

#include <torch/types.h>

#include <filesystem>
#include <string>
#include <vector>

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

}  // namespace llama

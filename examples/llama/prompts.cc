// Reading, checking and padding of prompts.
#include "prompts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <charconv>
#include <sstream>

namespace llama {

Ids parse_ids(const std::string& text) {
  Ids ids;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    std::int64_t id = 0;
    const char* end = word.data() + word.size();
    const auto [last, error] = std::from_chars(word.data(), end, id);
    TORCH_CHECK_VALUE(error == std::errc() && last == end, "meshtorch-llama: \"", word,
                      "\" is no token id\n  in: ", text,
                      "\n  do: give whole numbers with commas between, as 1,5,7");
    ids.push_back(id);
  }
  return ids;
}

Ids bytes_of(const std::string& text) {
  Ids ids;
  for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
  return ids;
}

std::string text_of(const Ids& ids) {
  std::string text;
  for (const std::int64_t id : ids) {
    if (is_byte(id)) {
      text += static_cast<char>(id);
    } else {
      text += "<" + std::to_string(id) + ">";
    }
  }
  return text;
}

void check_model_of_bytes(const std::filesystem::path& model) {
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json"}) {
    TORCH_CHECK_VALUE(!std::filesystem::exists(model / name), "meshtorch-llama: the model has a tokenizer, ",
                      name, ", and --prompt is for models of bytes\n  in: ", model.string(),
                      "\n  do: give the ids that the tokenizer makes of the text, as --ids 1,5,7");
  }
}

void check_prompts(const std::vector<Ids>& prompts, std::int64_t vocab_size) {
  TORCH_CHECK_VALUE(!prompts.empty(),
                    "meshtorch-llama: there is no prompt\n  where: --ids or --prompt\n  do: give one");
  for (std::size_t row = 0; row < prompts.size(); ++row) {
    TORCH_CHECK_VALUE(!prompts[row].empty(),
                      "meshtorch-llama: a prompt needs at least one token\n  where: prompt ", row,
                      "\n  do: give one, as --ids 1");
    for (std::size_t i = 0; i < prompts[row].size(); ++i) {
      const std::int64_t id = prompts[row][i];
      TORCH_CHECK_VALUE(id >= 0 && id < vocab_size, "meshtorch-llama: token id ", id,
                        " is out of range: the vocabulary has ", vocab_size, " tokens\n  where: prompt ", row,
                        ", token ", i, "\n  do: give ids from 0 to ", vocab_size - 1);
    }
  }
}

PromptBatch make_batch(const std::vector<Ids>& prompts) {
  std::size_t longest = 0;
  for (const Ids& prompt : prompts) longest = std::max(longest, prompt.size());
  Ids padded, pads;
  for (const Ids& prompt : prompts) {
    pads.push_back(static_cast<std::int64_t>(longest - prompt.size()));
    padded.insert(padded.end(), longest - prompt.size(), 0);
    padded.insert(padded.end(), prompt.begin(), prompt.end());
  }
  PromptBatch batch;
  batch.ids_BS = at::tensor(padded, at::kLong).view({static_cast<std::int64_t>(prompts.size()), -1});
  if (std::any_of(pads.begin(), pads.end(), [](std::int64_t pad) { return pad > 0; })) {
    batch.pads_B = at::tensor(pads, at::kLong);
  }
  return batch;
}

}  // namespace llama

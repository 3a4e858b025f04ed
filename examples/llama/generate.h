// Generation: prompts in, new tokens out, with a cache whose heads are split over tp.
#pragma once

#include <functional>

#include "parallelize.h"
#include "prompts.h"
#include "sampling.h"

namespace llama {

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

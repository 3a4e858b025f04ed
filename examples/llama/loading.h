// A model from a Hugging Face checkpoint onto a mesh: each rank reads the bytes of its shards.
#pragma once

#include <filesystem>

#include "parallelize.h"

namespace llama {

// "float32", "float64", "bfloat16" or "float16".
torch::Dtype dtype_of(const std::string& name);

// Loads config.json and the safetensors files of a directory, converted to `dtype`. Throws an error that
// names file and tensor, on every rank, if something is missing or does not fit.
Llama load_model(const std::filesystem::path& directory, const meshtorch::DeviceMesh& mesh,
                 torch::Dtype dtype, const ParallelOptions& options = {.sequence_parallel = false});

// Loads the weights only.
void load_weights(LlamaImpl& model, const std::filesystem::path& path);

}  // namespace llama

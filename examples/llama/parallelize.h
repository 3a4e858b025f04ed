// How a Llama is spread over a mesh of up to five axes, and loaded onto it: the only file that knows both.
#pragma once

#include <meshtorch/context_parallel.h>
#include <meshtorch/device_mesh.h>
#include <meshtorch/dtensor.h>
#include <meshtorch/parallelize.h>

#include <filesystem>
#include <optional>

#include "model.h"

namespace llama {

struct ParallelOptions {
  // Between attention and MLP each rank of tp keeps a part of the sequence: less memory in training.
  // Generation of single tokens has nothing to split.
  bool sequence_parallel = true;
};

// How many ranks share what.
struct MeshShape {
  std::int64_t dp = 1;            // the batch
  std::int64_t cp = 1;            // each sequence
  std::int64_t tp = 1;            // each layer
  std::int64_t dp_shard = 0;      // 0: dp has copies of the parameters; else they are split over so many,
  std::int64_t dp_replicate = 1;  // of which there are so many copies; both in the place of dp

  std::int64_t data() const { return dp_shard > 0 ? dp_replicate * dp_shard : dp; }
  std::int64_t size() const { return data() * cp * tp; }
  // "dp 2 x tp 4", with shards and cp if they are there.
  std::string to_string() const;
};

// The mesh of all ranks: (dp, cp, tp) or (dp_replicate, dp_shard, cp, tp), without cp if it is 1.
meshtorch::DeviceMesh make_mesh(const MeshShape& shape, c10::DeviceType device = torch::kCPU);
bool has_axis(const meshtorch::DeviceMesh& mesh, const std::string& name);

// Which module is split how over tp. Vocabulary: embedding by rows, output by columns, so that logits_BSV
// stay split by V for loss_parallel. Attention by heads, MLP by hidden units.
meshtorch::ParallelizePlan plan_of(const Config& config, std::int64_t tp,
                                   const ParallelOptions& options = {});

// Applies the plan over tp and replicates over cp and dp, or makes each layer a group of fully_shard over dp.
// Only shards are kept; a model without data stays without. Call the model with distribute_batch(…) and under
// meshtorch::implicit_replication: positions and masks are plain tensors.
void parallelize(Llama model, const meshtorch::DeviceMesh& mesh, const ParallelOptions& options = {});

// A batch_BS that every rank has: rows split over dp, the sequence, unless it is a single position, over cp.
meshtorch::DTensor distribute_batch(const torch::Tensor& batch_BS, const meshtorch::DeviceMesh& mesh);

// A batch to learn from, distributed so. Each rank of cp has a piece from the front of the sequence and one
// from the back where the length allows it, so that all have equal work; attention knows that while this
// lives, and in backward.
class TrainingBatch {
 public:
  // All ranks have both in full.
  TrainingBatch(const torch::Tensor& ids_BS, const torch::Tensor& targets_BS,
                const meshtorch::DeviceMesh& mesh);

  torch::Tensor ids_BS, targets_BS;
  torch::Tensor positions_BS;  // undefined: one after the other

 private:
  std::optional<meshtorch::context_parallel> order_;
};

// "float32", "float64", "bfloat16" or "float16".
torch::Dtype dtype_of(const std::string& name);

// Loads config.json and the safetensors files of a directory, converted to `dtype`. Throws an error that
// names file and tensor, on every rank, if something is missing or does not fit.
Llama load_model(const std::filesystem::path& directory, const meshtorch::DeviceMesh& mesh,
                 torch::Dtype dtype, const ParallelOptions& options = {.sequence_parallel = false});

// Loads the weights only.
void load_weights(LlamaImpl& model, const std::filesystem::path& path);

}  // namespace llama

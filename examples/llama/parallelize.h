// How a Llama is spread over a mesh (dp, tp) or (dp_replicate, dp_shard, tp): the only file that knows both.
#pragma once

#include <meshtorch/device_mesh.h>
#include <meshtorch/dtensor.h>
#include <meshtorch/parallelize.h>

#include "model.h"

namespace llama {

struct ParallelOptions {
  // Between attention and MLP each rank of tp keeps a part of the sequence: less memory in training.
  // Generation of single tokens has nothing to split.
  bool sequence_parallel = true;
};

// The mesh of all ranks: dp rows of tp.
meshtorch::DeviceMesh make_mesh(std::int64_t dp, std::int64_t tp, c10::DeviceType device = torch::kCPU);
// The same for parameters that are split over batches too: dp_replicate copies of dp_shard shards.
meshtorch::DeviceMesh make_sharding_mesh(std::int64_t dp_replicate, std::int64_t dp_shard, std::int64_t tp,
                                         c10::DeviceType device = torch::kCPU);

// Which module is split how over tp. Vocabulary: embedding by rows, output by columns, so that logits_BSV
// stay split by V for loss_parallel. Attention by heads, MLP by hidden units.
meshtorch::ParallelizePlan plan_of(const Config& config, const ParallelOptions& options = {});

// Applies the plan over tp and replicates over dp, or makes each layer a group of fully_shard. Only shards
// are kept; a model without data stays without. Call the model with distribute_batch(…) and under
// meshtorch::implicit_replication: positions and masks are plain tensors.
void parallelize(Llama model, const meshtorch::DeviceMesh& mesh, const ParallelOptions& options = {});

// A batch that every rank has, its rows split over all axes but tp.
meshtorch::DTensor distribute_batch(const torch::Tensor& batch, const meshtorch::DeviceMesh& mesh);

}  // namespace llama

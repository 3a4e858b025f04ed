// Data parallelism with a whole model on every rank.
#pragma once

#include <cstdint>
#include <optional>

#include "meshtorch/api.h"
#include "meshtorch/data_parallel.h"
#include "meshtorch/device_mesh.h"

namespace meshtorch {

// How replicate reduces gradients.
struct ReplicateOptions {
  // Gradients are reduced in buckets of about this size, while backward goes on; the first is smaller, so
  // that communication begins early.
  std::int64_t bucket_bytes = std::int64_t{25} << 20;
  std::int64_t first_bucket_bytes = std::int64_t{1} << 20;
  // Parameters that got no gradient on this rank count as zero; those that got none on any rank keep what
  // they have. Without it such a parameter is an error that names it.
  bool find_unused_parameters = false;
  MixedPrecisionPolicy mp_policy = {};
  // The rank whose parameters and buffers all ranks start with. None: every rank keeps its own, and nothing
  // is sent.
  std::optional<int> src_data_rank = 0;
};

// Keeps a copy of the module on every rank of a mesh of one axis, and reduces gradients during backward,
// beside what parallelize_module made of it. Between steps the parameters are DTensors. Batches: as in
// fully_shard.
MESHTORCH_API void replicate(torch::nn::Module& module, const DeviceMesh& mesh,
                             const ReplicateOptions& options = {});

}  // namespace meshtorch

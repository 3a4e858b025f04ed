// Filling a tensor from a part of a stored one, without a copy of the whole in between.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/shard_indices.h"
#include "safetensors/model_files.h"

namespace meshtorch::safetensors::internal {

using namespace meshtorch::internal;

// Fills `target`, a plain tensor of any strides, type and device, with the elements `part` of a stored
// tensor, in row-major order of both.
void fill(const at::Tensor& target, const OpenFile& file, const StoredTensor& source,
          const ShardIndices& part);

}  // namespace meshtorch::safetensors::internal

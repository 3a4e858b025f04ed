// Tensors as memory: their runs of bytes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "core/shard.h"
#include "kernels/runs.h"

namespace meshtorch::internal {

using RunVector = c10::SmallVector<Runs, 4>;

// All bytes of a contiguous tensor.
inline Runs whole_of(const at::Tensor& t) {
  return {static_cast<char*>(const_cast<void*>(t.const_data_ptr())), t.nbytes()};
}

inline RunVector wholes_of(at::TensorList tensors) {
  RunVector runs;
  for (const at::Tensor& t : tensors) runs.push_back(whole_of(t));
  return runs;
}

// The indices [begin, begin + size) of one dim of a contiguous tensor.
inline Runs part_along(const at::Tensor& t, std::int64_t dim, std::int64_t begin, std::int64_t size) {
  const Runs all = whole_of(t);
  if (all.run == 0 || size == 0) return {all.data, 0};
  std::size_t outer = 1;
  for (std::int64_t d = 0; d < dim; ++d) outer *= static_cast<std::size_t>(t.size(d));
  const std::size_t stride = all.run / outer;
  const std::size_t inner = stride / static_cast<std::size_t>(t.size(dim));
  const std::size_t run = static_cast<std::size_t>(size) * inner;
  if (run == stride) return all;
  return {all.data + static_cast<std::size_t>(begin) * inner, run, outer, stride};
}

// The chunk that one of `ranks` ranks has of every tensor along its dim, as torch::chunk cuts.
inline RunVector chunks_for(at::TensorList tensors, at::IntArrayRef dims, int ranks, int rank) {
  RunVector parts;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Range range = chunk(tensors[i].size(dims[i]), ranks, rank);
    parts.push_back(part_along(tensors[i], dims[i], range.begin, range.size));
  }
  return parts;
}

// The bytes of a box, a range for each of the first dims of a strided tensor and all of the others, row by
// row.
void append_box(RunVector& runs, const at::Tensor& t, std::span<const Range> ranges);

}  // namespace meshtorch::internal

// Memory for the results of collectives: large blocks are kept for the next result of their size, since pages
// that are new cost more than the bytes that are written to them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace meshtorch::internal {

// As at::empty, which observers see, with memory that is reused where it is large. On the CPU only.
at::Tensor empty_result(at::IntArrayRef sizes, const at::TensorOptions& options);

// What this process keeps for results to come, never more than this.
constexpr std::size_t kMaxKeptBytes = std::size_t{256} << 20;
std::size_t kept_result_bytes();

}  // namespace meshtorch::internal

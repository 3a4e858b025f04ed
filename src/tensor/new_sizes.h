// What is asked of the sizes of a tensor that is to be made.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace meshtorch::internal {

// Throws ValueError.
inline void check_new_sizes(c10::IntArrayRef sizes) {
  TORCH_CHECK_VALUE(std::ranges::all_of(sizes, [](std::int64_t size) { return size >= 0; }),
                    "meshtorch: a tensor cannot have a negative size\n  sizes: ", sizes,
                    "\n  do: give sizes of 0 or more");
}

}  // namespace meshtorch::internal

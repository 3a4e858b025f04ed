// What a training step frees stays with the process: glibc is told so.
#include "data_parallel/malloc_retention.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <string_view>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace meshtorch::internal {
namespace {

// As glibc reads them when the process starts.
bool has_limits_of_the_user() {
  const char* const names[] = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_"};
  const char* tunables = std::getenv("GLIBC_TUNABLES");
  return std::any_of(std::begin(names), std::end(names),
                     [](const char* name) { return std::getenv(name) != nullptr; }) ||
         (tunables != nullptr && std::string_view(tunables).find("glibc.malloc.") != std::string_view::npos);
}

}  // namespace

void configure_malloc_retention() {
#if defined(__GLIBC__)
  [[maybe_unused]] static const bool done = [] {
    if (has_limits_of_the_user()) return false;
    constexpr int kLargestInHeap = 32 << 20;  // blocks above it have a mapping each, and give it back
    mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
    mallopt(M_MMAP_THRESHOLD, kLargestInHeap);
    return true;
  }();
#endif
}

}  // namespace meshtorch::internal

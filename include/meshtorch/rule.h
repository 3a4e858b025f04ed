// What decides how operators run on distributed tensors.
#pragma once

#include <cstdint>

#include "meshtorch/api.h"

namespace meshtorch {

class DeviceMesh;

// What happens when an operator that has no rule meets split tensors. It runs on the whole tensors on every
// rank, and the result is right and replicated: warn says so once for each operator, error throws instead.
enum class FallbackPolicy : std::uint8_t { warn, error, silent };

// For all ranks of the process. The default is warn.
MESHTORCH_API void set_fallback_policy(FallbackPolicy policy);
MESHTORCH_API FallbackPolicy fallback_policy();

// How often a call on this mesh looked like an earlier one, so that nothing had to be decided anew.
struct CacheStatistics {
  std::uint64_t hits = 0;
  std::uint64_t misses = 0;
  std::uint64_t size = 0;  // decisions kept; bounded
};
MESHTORCH_API CacheStatistics decision_cache_statistics(const DeviceMesh& mesh);

}  // namespace meshtorch

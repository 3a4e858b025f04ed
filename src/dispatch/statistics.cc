// How often decisions were found in the cache.
#include "comm/mesh_impl.h"
#include "dispatch/decision.h"
#include "meshtorch/device_mesh.h"
#include "meshtorch/rule.h"

namespace meshtorch {

CacheStatistics decision_cache_statistics(const DeviceMesh& mesh) {
  const DecisionCache& cache = mesh.impl().decisions();
  return {cache.hits(), cache.misses(), cache.size()};
}

}  // namespace meshtorch

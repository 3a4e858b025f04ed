// How often decisions were found in the cache.
#include "mesh/mesh_impl.h"
#include "meshtorch/device_mesh.h"
#include "meshtorch/rule.h"
#include "operator/decision.h"

namespace meshtorch {
using namespace internal;

CacheStatistics decision_cache_statistics(const DeviceMesh& mesh) {
  const DecisionCache& cache = decisions_of(impl_of(mesh));
  return {cache.hits(), cache.misses(), cache.size()};
}

}  // namespace meshtorch

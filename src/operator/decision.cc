// The cache of decisions.
#include "operator/decision.h"

#include "mesh/mesh_impl.h"

#include "rules/own_rules.h"

namespace meshtorch::internal {

std::size_t DecisionCache::Hash::operator()(const CallKey& key) const {
  std::uint64_t hash = key.size();
  for (const std::int64_t number : key)
    hash = (hash ^ static_cast<std::uint64_t>(number)) * 0x9E3779B97F4A7C15ULL;
  return hash ^ (hash >> 32U);
}

std::shared_ptr<const Decision> DecisionCache::find(const CallKey& key) {
  const std::scoped_lock lock(mutex_);
  if (const std::uint64_t now = rules_version(); now != rules_version_) {
    decisions_.clear();
    rules_version_ = now;
  }
  const auto found = decisions_.find(key);
  if (found == decisions_.end()) {
    ++misses_;
    return nullptr;
  }
  ++hits_;
  return found->second;
}

void DecisionCache::insert(const CallKey& key, std::shared_ptr<const Decision> decision) {
  const std::scoped_lock lock(mutex_);
  if (decision->rules_version != rules_version_) return;
  if (decisions_.size() >= kCapacity) decisions_.clear();
  decisions_.insert_or_assign(key, std::move(decision));
}

std::size_t DecisionCache::size() const {
  const std::scoped_lock lock(mutex_);
  return decisions_.size();
}

DecisionCache& decisions_of(MeshImpl& mesh) {
  const auto make = []() -> std::unique_ptr<PerMeshCache> { return std::make_unique<DecisionCache>(); };
  return static_cast<DecisionCache&>(mesh.attachment(PerMeshCache::Slot::decisions, make));
}

}  // namespace meshtorch::internal

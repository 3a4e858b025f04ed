// Redistributions of this rank on one mesh that were worked out before.
#include "tensor/move_cache.h"

#include "mesh/mesh_impl.h"
#include "rules/own_rules.h"
#include "tensor/execute.h"
#include "tensor/meta.h"

namespace meshtorch::internal {

std::size_t MoveCache::Hash::operator()(const Key& key) const {
  std::size_t hash = key.size();
  for (const std::int64_t number : key) hash = (hash ^ static_cast<std::size_t>(number)) * 0x9E3779B97F4A7C15;
  return hash ^ (hash >> 32);
}

std::shared_ptr<const PreparedMove> MoveCache::get(c10::ArrayRef<std::int64_t> shape, std::int64_t item_size,
                                                   const Layout& from, const Layout& to) {
  Key key{reinterpret_cast<std::int64_t>(&from), reinterpret_cast<std::int64_t>(&to), item_size};
  key.append(shape.begin(), shape.end());
  const std::uint64_t version = rules_version();
  {
    const std::scoped_lock lock(mutex_);
    if (version != version_) {
      moves_.clear();
      boxes_ = 0;
      version_ = version;
    }
    if (const auto found = moves_.find(key); found != moves_.end()) return found->second;
  }
  const MeshImpl& mesh = *from.mesh;
  auto move = std::make_shared<const PreparedMove>(
      prepare_move(shape.vec(), mesh.shape(), from.placements, plan_between(shape.vec(), item_size, from, to),
                   coordinate_in(mesh)));
  const std::scoped_lock lock(mutex_);
  if (version != version_) return move;  // another thread of this rank has outdated it meanwhile
  if (boxes_ > kMaxBoxes) {
    moves_.clear();
    boxes_ = 0;
  }
  boxes_ += move->weight();
  return moves_.insert_or_assign(std::move(key), std::move(move)).first->second;
}

MoveCache& moves_of(MeshImpl& mesh) {
  const auto make = []() -> std::unique_ptr<PerMeshCache> { return std::make_unique<MoveCache>(); };
  return static_cast<MoveCache&>(mesh.attachment(PerMeshCache::Slot::moves, make));
}

}  // namespace meshtorch::internal

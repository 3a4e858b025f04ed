// Redistributions of this rank on one mesh that were worked out before.
#pragma once

#include <c10/util/SmallVector.h>

#include <memory>
#include <mutex>
#include <unordered_map>

#include "mesh/layout.h"
#include "mesh/per_mesh_cache.h"
#include "redistribute/prepared_move.h"

namespace meshtorch::internal {

// Bounded by what it keeps, not by their number: in large groups one move has many boxes. When full it is
// emptied, since programs repeat few moves many times; and when decisions are outdated, as by other costs.
class MoveCache : public PerMeshCache {
 public:
  static constexpr std::size_t kMaxBoxes = std::size_t{1} << 18;

  std::shared_ptr<const PreparedMove> get(c10::ArrayRef<std::int64_t> shape, std::int64_t item_size,
                                          const Layout& from, const Layout& to);

 private:
  using Key = c10::SmallVector<std::int64_t, 10>;
  struct Hash {
    std::size_t operator()(const Key& key) const;
  };

  std::mutex mutex_;
  std::unordered_map<Key, std::shared_ptr<const PreparedMove>, Hash> moves_;
  std::size_t boxes_ = 0;
  std::uint64_t version_ = 0;  // of the decisions, of all that is kept
};

MoveCache& moves_of(MeshImpl& mesh);

}  // namespace meshtorch::internal

// How a tensor lies on a mesh: one placement for each axis. Interned, so that equality and hashing are a
// pointer.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>

#include "meshtorch/placement.h"
#include "signature/call_hash.h"

namespace meshtorch::internal {

class MeshImpl;

struct Layout {
  MeshImpl* mesh;
  Placements placements;  // normalized
  bool is_replicated;     // on every axis
  bool has_partial;
};

// The layouts of one mesh, which owns them. Their number is that of the different placements a program uses:
// they are never dropped before the mesh is.
class LayoutTable {
 public:
  explicit LayoutTable(MeshImpl& mesh) : mesh_(mesh) {}

  const Layout* get(const Placements& placements);

 private:
  struct Hash {
    std::size_t operator()(const Placements& placements) const { return hash_value(placements); }
  };

  MeshImpl& mesh_;
  std::mutex mutex_;
  std::unordered_map<Placements, std::unique_ptr<Layout>, Hash> layouts_;
};

}  // namespace meshtorch::internal

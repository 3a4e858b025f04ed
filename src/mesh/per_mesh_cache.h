// What a layer above the meshes keeps with each of them, and what ends with it.
#pragma once

#include <cstddef>

namespace meshtorch::internal {

class PerMeshCache {
 public:
  // One for each kind; whoever asks for a slot names the same maker.
  enum class Slot : std::size_t { moves, decisions };
  static constexpr std::size_t kSlots = 2;

  virtual ~PerMeshCache() = default;
};

}  // namespace meshtorch::internal

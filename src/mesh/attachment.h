// What a layer above the meshes keeps with each of them, and what ends with it.
#pragma once

namespace meshtorch {

class MeshAttachment {
 public:
  virtual ~MeshAttachment() = default;
};

}  // namespace meshtorch

// Calls that all ranks of a mesh make alike, compared though they send nothing.
#include "mesh/agree_on_mesh.h"

#include <numeric>

#include "mesh/mesh_impl.h"

namespace meshtorch::internal {

void agree_on(const MeshImpl& mesh, const std::string& call, const std::string& arguments) {
  if (!mesh.coordinate() || mesh.ranks().size() == 1) return;
  std::vector<int> axes(mesh.shape().size());
  std::iota(axes.begin(), axes.end(), 0);
  agree_on(mesh.group(axes), AlikeCall(call, arguments));
}

}  // namespace meshtorch::internal

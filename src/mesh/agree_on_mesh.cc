// Calls that all ranks of a mesh make alike, compared though they send nothing.
#include "mesh/agree_on_mesh.h"

#include <numeric>
#include <utility>

#include "mesh/mesh_impl.h"

namespace meshtorch::internal {

namespace {

Group group_of_all(const MeshImpl& mesh) {
  std::vector<int> axes(mesh.shape().size());
  std::iota(axes.begin(), axes.end(), 0);
  return mesh.group(axes);
}

}  // namespace

void agree_on(const MeshImpl& mesh, std::string call) {
  if (!mesh.coordinate() || mesh.ranks().size() == 1) return;
  agree_on(group_of_all(mesh), UncommunicatedCall(std::move(call)));
}

bool all_say(const MeshImpl& mesh, const char* question, bool mine) {
  if (!mesh.coordinate() || mesh.ranks().size() == 1 || !mesh.backend().has_peers) return mine;
  return all_say(group_of_all(mesh), question, mine);
}

void log_local_call(const MeshImpl& mesh, const CallHash& hash, const CallWords& words) {
  if (!mesh.coordinate()) return;
  log_local_call(mesh.ranks(), hash, words, [&] { return group_of_all(mesh); });
}

}  // namespace meshtorch::internal

// Layouts that ranks give to tensors without sending anything.
#include "tensor/log_layout.h"

#include <c10/util/ArrayRef.h>
#include <c10/util/StringUtil.h>

#include <string_view>

#include "mesh/agree_on_mesh.h"
#include "mesh/mesh_impl.h"
#include "signature/tensor_signatures.h"

namespace meshtorch::internal {

TensorOrigin origin_of_made(const char* what, const Layout& layout, c10::ScalarType type) {
  if (!layout.mesh->backend().has_peers) return {};
  CallHash hash;
  hash.add(std::string_view(what));
  hash.add(static_cast<std::uint64_t>(type));
  add_placements(hash, layout.placements);
  const std::uint64_t number = number_of_next_tensor(layout.mesh->ranks());
  return {number == kUnknownOrigin ? number : combined(hash.short_form(), number), what};
}

TensorOrigin log_layout(const char* what, const Layout& layout, c10::ScalarType type,
                        const std::optional<Shape>& shape, const Layout* from) {
  if (!layout.mesh->backend().has_peers) return {};
  CallHash hash;
  hash.add(std::string_view(what));
  hash.add(static_cast<std::uint64_t>(type));
  add_placements(hash, layout.placements);
  if (from != nullptr) add_placements(hash, from->placements);
  if (shape) {
    for (const std::int64_t size : *shape) hash.add(static_cast<std::uint64_t>(size));
  }
  // A mesh of a group of the user's may be gone when the words are asked for, and its layouts with it.
  const auto words = [what, to = &layout, type, shape, from, mesh = layout.mesh->shared_from_this()] {
    return c10::str(what, "(", c10::toString(type), shape ? c10::str(c10::IntArrayRef(*shape)) : "", ", ",
                    from == nullptr ? "" : to_string(from->placements) + " to ", to_string(to->placements),
                    ")");
  };
  log_local_call(*layout.mesh, hash, words);
  return origin_of_made(what, layout, type);
}

}  // namespace meshtorch::internal

// Layouts that ranks give to tensors without sending anything: all ranks of a mesh have to give the same.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

#include "core/shard.h"
#include "mesh/layout.h"
#include "signature/call_subject.h"

namespace meshtorch::internal {

// `what` ("from_local") makes a tensor of this layout and type, and of this global shape where that is known;
// of one that was laid out as `from`. Compared as mesh/agree_on_mesh declares. `what` must live for ever.
// Returns the origin of that tensor, by which it is told from others of its kind.
TensorOrigin log_layout(const char* what, const Layout& layout, c10::ScalarType type,
                        const std::optional<Shape>& shape, const Layout* from = nullptr);
// Returns the origin of such a tensor without declaring it: its ranks compare more.
TensorOrigin origin_of_made(const char* what, const Layout& layout, c10::ScalarType type);

}  // namespace meshtorch::internal

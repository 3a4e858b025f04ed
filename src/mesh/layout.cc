// Interned layouts.
#include "mesh/layout.h"

#include <algorithm>

namespace meshtorch::internal {

const Layout* LayoutTable::get(const Placements& placements) {
  const std::scoped_lock lock(mutex_);
  std::unique_ptr<Layout>& layout = layouts_[placements];
  if (!layout) {
    const bool is_replicated = std::all_of(placements.begin(), placements.end(),
                                           [](const Placement& p) { return p.is_replicate(); });
    const bool has_partial =
        std::any_of(placements.begin(), placements.end(), [](const Placement& p) { return p.is_partial(); });
    layout = std::make_unique<Layout>(Layout{&mesh_, placements, is_replicated, has_partial});
  }
  return layout.get();
}

}  // namespace meshtorch::internal

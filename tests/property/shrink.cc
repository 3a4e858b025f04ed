// Shrinks a call that is wrong.
#include "../dist/samples.h"
#include "draw_call.h"

namespace meshtorch::testing {
namespace {

bool is_wrong(const PlacedCall& placed) {
  const auto expected = plain_run(placed.call);
  return expected && judge(placed, *expected).kind == Verdict::Kind::wrong;
}

// The calls that are one step smaller, the largest steps first.
std::vector<PlacedCall> smaller(const PlacedCall& placed) {
  std::vector<PlacedCall> all;
  if (placed.mesh.size() > 1) {
    for (std::size_t axis = 0; axis < placed.mesh.size(); ++axis) {
      PlacedCall less = placed;
      less.mesh.erase(less.mesh.begin() + static_cast<std::ptrdiff_t>(axis));
      for (auto* tensors : {&less.placements, &less.incoming}) {
        for (mt::Placements& p : *tensors) p.erase(p.begin() + static_cast<std::ptrdiff_t>(axis));
      }
      all.push_back(std::move(less));
    }
  } else if (placed.mesh[0] > 2) {
    PlacedCall less = placed;
    less.mesh[0] -= 1;
    all.push_back(std::move(less));
  }
  for (const auto tensors : {&PlacedCall::placements, &PlacedCall::incoming}) {
    for (std::size_t t = 0; t < (placed.*tensors).size(); ++t) {
      for (std::size_t axis = 0; axis < placed.mesh.size(); ++axis) {
        if ((placed.*tensors)[t][axis].is_replicate()) continue;
        PlacedCall less = placed;
        (less.*tensors)[t][axis] = mt::Replicate();
        all.push_back(std::move(less));
      }
    }
  }
  // Plain LibTorch may die of other sizes of an operator that is called with its samples only.
  if (!reason_not_to_draw(placed.call.name()).empty()) return all;
  for (const int64_t size : sizes_in(placed.call)) {
    for (const bool in_lists : {false, true}) {
      if (size < 2) continue;
      PlacedCall less = placed;
      less.call = with_size(placed.call, size, size / 2, in_lists);
      all.push_back(std::move(less));
      less.call = with_size(placed.call, size, size - 1, in_lists);
      all.push_back(std::move(less));
    }
  }
  return all;
}

}  // namespace

PlacedCall shrunk(const PlacedCall& wrong) {
  PlacedCall best = wrong;
  for (bool is_smaller = true; is_smaller;) {
    is_smaller = false;
    for (PlacedCall& candidate : smaller(best)) {
      if (!is_wrong(candidate)) continue;
      best = std::move(candidate);
      is_smaller = true;
      break;
    }
  }
  return best;
}

}  // namespace meshtorch::testing

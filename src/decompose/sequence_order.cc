// Head and tail pieces of a sequence.
#include "decompose/sequence_order.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace meshtorch::internal {

std::vector<Range> SequenceOrder::positions(const std::vector<Range>& indices, std::int64_t size) const {
  if (is_natural()) return indices;
  TORCH_CHECK_VALUE(size % pieces == 0,
                    "meshtorch: a sequence in balanced order must be a multiple of twice the ranks long\n  "
                    "length: ",
                    size, ", pieces: ", pieces,
                    "\n  do: pad it, or open context_parallel with load_balance off");
  const std::int64_t each = size / pieces;
  std::vector<Range> found;
  for (const Range& run : indices) {
    for (std::int64_t begin = run.begin; begin < run.end();) {
      const std::int64_t piece = begin / each;
      const std::int64_t end = std::min(run.end(), (piece + 1) * each);
      const std::int64_t original = piece % 2 == 0 ? piece / 2 : pieces - 1 - piece / 2;
      found.push_back({original * each + begin - piece * each, end - begin});
      begin = end;
    }
  }
  return found;
}

std::vector<std::int64_t> SequenceOrder::permutation(std::int64_t size) const {
  std::vector<std::int64_t> all;
  for (const Range& run : positions({{0, size}}, size)) {
    for (std::int64_t i = run.begin; i < run.end(); ++i) all.push_back(i);
  }
  return all;
}

}  // namespace meshtorch::internal

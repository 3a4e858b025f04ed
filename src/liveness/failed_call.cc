// Calls that failed, in memory that other ranks read.
#include "liveness/failed_call.h"

#include <algorithm>

#include "liveness/shared_text.h"

namespace meshtorch::internal {

bool FailedCall::concerns(const std::vector<int>& world_ranks) const {
  return std::all_of(world_ranks.begin(), world_ranks.end(), [&](int member) {
    return std::find(concerned.begin(), concerned.end(), member) != concerned.end();
  });
}

void FailureNote::write(const FailedCall& failed) {
  rank_ = failed.rank;
  kind_ = failed.kind;
  for (auto& bits : concerned_) bits = 0;
  for (const int member : failed.concerned) {
    const auto place = static_cast<std::size_t>(member);
    if (place < 64 * concerned_.size()) concerned_[place / 64] |= std::uint64_t{1} << place % 64;
  }
  write_shared_text(words_, failed.words);
}

FailedCall FailureNote::read() const {
  FailedCall failed{rank_, kind_, read_shared_text(words_), {}};
  for (std::size_t place = 0; place < 64 * concerned_.size(); ++place) {
    if ((concerned_[place / 64] >> place % 64 & 1) != 0) failed.concerned.push_back(static_cast<int>(place));
  }
  return failed;
}

}  // namespace meshtorch::internal

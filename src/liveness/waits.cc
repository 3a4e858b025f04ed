// Who waits for whom.
#include "liveness/waits.h"

#include <deque>
#include <set>

#include "liveness/shared_text.h"

namespace meshtorch::internal {
namespace {

constexpr std::size_t kLinesOfChain = 8;  // the words have to fit into a slot

}  // namespace

void WaitNote::write(const Wait& wait) {
  for (std::size_t i = 0; i < kRanks; ++i)
    ranks_[i].store(i < wait.ranks.size() ? wait.ranks[i] + 1 : 0, std::memory_order_relaxed);
  write_shared_text(what_, wait.what);
  is_for_others_ = wait.is_for_others;
  is_given_up_ = wait.is_given_up;
  is_there_ = 1;
}

Wait WaitNote::read() const {
  Wait wait;
  for (const auto& rank : ranks_) {
    if (const std::int32_t number = rank.load(std::memory_order_relaxed); number > 0)
      wait.ranks.push_back(number - 1);
  }
  wait.what = read_shared_text(what_);
  wait.is_for_others = is_for_others_;
  wait.is_given_up = is_given_up_;
  return wait;
}

std::string follow_waits(int self, const std::vector<int>& late,
                         const std::function<std::optional<Whereabouts>(int world_rank)>& look) {
  std::string text;
  std::set<int> seen{self};
  std::deque<int> rest(late.begin(), late.end());
  std::size_t lines = 0;
  bool has_end = false;
  while (!rest.empty() && lines < kLinesOfChain) {
    const int rank = rest.front();
    rest.pop_front();
    if (!seen.insert(rank).second) continue;
    const std::optional<Whereabouts> found = look(rank);
    if (!found) continue;
    const std::string name = "\n  rank " + std::to_string(rank);
    if (found->waits.empty()) {
      text.append(name).append(" has not come: ").append(found->state);
      has_end = true;
      ++lines;
    }
    for (const Wait& wait : found->waits) {
      text.append(name).append(wait.is_given_up ? " gave up waiting for " : " waits for ").append(wait.what);
      has_end = has_end || wait.is_for_others;
      rest.insert(rest.end(), wait.ranks.begin(), wait.ranks.end());
      ++lines;
    }
  }
  if (lines > 0 && rest.empty() && !has_end) text.append("\n  so that they wait for each other");
  return text;
}

std::string list_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < ranks.size(); ++i)
    text.append(i == 0 ? " " : ", ").append(std::to_string(ranks[i]));
  return text;
}

}  // namespace meshtorch::internal

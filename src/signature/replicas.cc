// Samples of replicas, in turn.
#include "signature/replicas.h"

#include <algorithm>

namespace meshtorch::internal {

void Replicas::add(std::shared_ptr<const Replica> replica) {
  const std::scoped_lock lock(mutex_);
  for (OfGroup* group : groups_) group->add_if_held_by_all(replica);
  if (list_.size() >= next_cleanup_) {
    std::erase_if(list_, [](const auto& held) { return !held->is_alive(); });
    next_cleanup_ = 2 * list_.size() + 64;
  }
  list_.push_back(std::move(replica));
}

void Replicas::clear() {
  const std::scoped_lock lock(mutex_);
  list_.clear();
  for (OfGroup* group : groups_) group->held_by_all_.clear();
}

Replicas::OfGroup::OfGroup(std::shared_ptr<Replicas> all, std::vector<int> world_ranks)
    : all_(std::move(all)), world_ranks_([&] {
        std::sort(world_ranks.begin(), world_ranks.end());
        return std::move(world_ranks);
      }()) {
  const std::scoped_lock lock(all_->mutex_);
  for (const auto& replica : all_->list_) add_if_held_by_all(replica);
  all_->groups_.push_back(this);
}

Replicas::OfGroup::~OfGroup() {
  const std::scoped_lock lock(all_->mutex_);
  std::erase(all_->groups_, this);
}

void Replicas::OfGroup::add_if_held_by_all(const std::shared_ptr<const Replica>& replica) {
  if (std::ranges::includes(replica->world_ranks(), world_ranks_))
    held_by_all_.emplace(replica->id(), replica);
}

// The replica whose id comes next after the latest, round the end; null if there is none.
std::shared_ptr<const Replica> Replicas::OfGroup::next_in_use() {
  const std::scoped_lock lock(all_->mutex_);
  auto next = held_by_all_.upper_bound(last_);
  for (std::size_t left = held_by_all_.size(); left > 0; --left) {
    if (next == held_by_all_.end()) next = held_by_all_.begin();
    if (!next->second->is_alive()) {
      next = held_by_all_.erase(next);
    } else if (next->second->is_in_use()) {
      return next->second;
    } else {
      ++next;
    }
  }
  return nullptr;
}

ReplicaSample Replicas::OfGroup::sample() {
  if (shown_) return {};
  auto next = next_in_use();
  if (!next) return {};
  const std::uint64_t id = next->id();
  const auto suspect = suspects_.find(id);
  const std::uint64_t round = id > last_ ? round_ : round_ + 1;
  const std::uint64_t part = suspect == suspects_.end() ? round : suspect->second;
  const auto checksum = next->checksum(part);
  if (!checksum) return {};
  shown_ = std::move(next);
  return {id, part, *checksum};
}

std::optional<std::string> Replicas::OfGroup::compare(const std::vector<ReplicaSample>& shown) {
  const auto mine = std::exchange(shown_, nullptr);
  const auto steps_from_last = [this](std::uint64_t id) { return id - last_ - 1; };  // round the end
  std::optional<std::uint64_t> id;
  for (const ReplicaSample& one : shown) {
    if (one.id != 0 && (!id || steps_from_last(one.id) < steps_from_last(*id))) id = one.id;
  }
  if (!id) return std::nullopt;
  if (*id <= last_) ++round_;
  last_ = *id;
  const std::uint64_t part = shown[0].part;
  const auto is_comparable = [&](const ReplicaSample& one) { return one.id == last_ && one.part == part; };
  if (!mine || !std::ranges::all_of(shown, is_comparable)) return std::nullopt;
  if (std::ranges::all_of(shown,
                          [&](const ReplicaSample& one) { return one.checksum == shown[0].checksum; })) {
    suspects_.erase(last_);
    return std::nullopt;
  }
  if (suspects_.try_emplace(last_, part).second) return std::nullopt;
  suspects_.erase(last_);
  return mine->name();
}

}  // namespace meshtorch::internal

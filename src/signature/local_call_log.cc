// Calls that all ranks of a mesh make alike though they send nothing, folded into what their groups compare
// next.
#include "signature/local_call_log.h"

#include <algorithm>
#include <utility>

#include "signature/call_subject.h"

namespace meshtorch::internal {
namespace {

constexpr std::size_t kLatest = 4;

}  // namespace

std::string Declared::text() const {
  std::string text;
  if (count > latest.size()) text = std::to_string(count - latest.size()) + " other calls";
  for (const CallWords& words : latest) text.append(text.empty() ? "" : ", ").append(words());
  return ", after " + text;
}

LocalCallLog::OfGroup::OfGroup(std::shared_ptr<LocalCallLog> all, std::vector<int> world_ranks)
    : all_(std::move(all)), world_ranks_([&] {
        std::sort(world_ranks.begin(), world_ranks.end());
        return std::move(world_ranks);
      }()) {
  const std::scoped_lock lock(all_->mutex_);
  all_->groups_.push_back(this);
  may_counts_differ_ = all_->has_error_ && all_->point_of(world_ranks_) == nullptr;
}

LocalCallLog::OfGroup::~OfGroup() {
  const std::scoped_lock lock(all_->mutex_);
  std::erase(all_->groups_, this);
}

std::unique_ptr<Declared> LocalCallLog::OfGroup::take_all() {
  const std::scoped_lock lock(all_->mutex_);
  has_any_.store(false, std::memory_order_relaxed);
  return std::move(declared_);
}

void LocalCallLog::add(const std::vector<std::int64_t>& world_ranks, const CallHash& hash,
                       const CallWords& words, LocalCallKind kind) {
  std::vector<std::int64_t> in_order;
  if (!std::is_sorted(world_ranks.begin(), world_ranks.end())) {
    in_order = world_ranks;
    std::sort(in_order.begin(), in_order.end());
  }
  const std::vector<std::int64_t>& all = in_order.empty() ? world_ranks : in_order;
  const std::scoped_lock lock(mutex_);
  for (OfGroup* group : groups_) {
    const std::vector<int>& members = group->world_ranks_;
    if (!std::includes(all.begin(), all.end(), members.begin(), members.end())) continue;
    if (!group->declared_) group->declared_ = std::make_unique<Declared>();
    Declared& declared = *group->declared_;
    (kind == LocalCallKind::call ? declared.calls : declared.values).add(hash);
    if (declared.latest.size() == kLatest) declared.latest.erase(declared.latest.begin());
    declared.latest.push_back(words);
    ++declared.count;
    group->has_any_.store(true, std::memory_order_relaxed);
  }
}

std::uint64_t LocalCallLog::number_of_next_tensor(const std::vector<std::int64_t>& world_ranks) {
  const std::scoped_lock lock(mutex_);
  const auto [entry, is_new] = tensors_made_.try_emplace(world_ranks);
  TensorCount& count = entry->second;
  if (is_new) {
    count.world_ranks.assign(world_ranks.begin(), world_ranks.end());
    std::ranges::sort(count.world_ranks);
    const CommonPoint* point = point_of(count.world_ranks);
    count.since = point != nullptr ? point->point : 0;
    count.is_known = point != nullptr || !has_error_;
  }
  if (!count.is_known) return kUnknownOrigin;
  ++count.tensors;
  return count.since == 0 ? count.tensors : combined(count.since, count.tensors);
}

void LocalCallLog::restart_counts(const std::vector<int>& world_ranks, std::uint64_t error) {
  replicas_->clear();
  const std::scoped_lock lock(mutex_);
  has_error_ = true;
  points_.clear();
  count_from({world_ranks, error});
}

void LocalCallLog::agree_on_counts(const std::vector<int>& world_ranks, std::uint64_t point) {
  const std::scoped_lock lock(mutex_);
  has_error_ = true;  // one of them had
  std::erase_if(points_,
                [&](const CommonPoint& old) { return std::ranges::includes(world_ranks, old.world_ranks); });
  count_from({world_ranks, point});
}

const LocalCallLog::CommonPoint* LocalCallLog::point_of(const std::vector<int>& world_ranks) const {
  const auto found = std::ranges::find_if(points_, [&](const CommonPoint& point) {
    return std::ranges::includes(point.world_ranks, world_ranks);
  });
  return found == points_.end() ? nullptr : &*found;
}

void LocalCallLog::count_from(CommonPoint latest) {
  for (auto& [ranks, count] : tensors_made_) {
    if (std::ranges::includes(latest.world_ranks, count.world_ranks)) {
      count.since = latest.point;
      count.tensors = 0;
      count.is_known = true;
    } else if (point_of(count.world_ranks) == nullptr) {
      count.is_known = false;
    }
  }
  points_.insert(points_.begin(), std::move(latest));
  for (OfGroup* group : groups_) group->may_counts_differ_ = point_of(group->world_ranks_) == nullptr;
}

void LocalCallLog::forget(const std::vector<int>& world_ranks) {
  const std::scoped_lock lock(mutex_);
  for (OfGroup* group : groups_) {
    const std::vector<int>& members = group->world_ranks_;
    if (!std::includes(world_ranks.begin(), world_ranks.end(), members.begin(), members.end())) continue;
    group->declared_.reset();
    group->has_any_.store(false, std::memory_order_relaxed);
  }
}

const std::shared_ptr<LocalCallLog>& local_calls_of_process() {
  static const auto* const local_calls = new std::shared_ptr<LocalCallLog>(std::make_shared<LocalCallLog>());
  return *local_calls;
}

}  // namespace meshtorch::internal

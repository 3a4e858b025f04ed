// Calls that all ranks of a mesh make alike though they send nothing, folded into what their groups compare
// next.
#include "comm/declarations.h"

#include <algorithm>
#include <utility>

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

Declarations::OfGroup::OfGroup(std::shared_ptr<Declarations> all, std::vector<int> world_ranks)
    : all_(std::move(all)), world_ranks_([&] {
        std::sort(world_ranks.begin(), world_ranks.end());
        return std::move(world_ranks);
      }()) {
  const std::scoped_lock lock(all_->mutex_);
  all_->groups_.push_back(this);
}

Declarations::OfGroup::~OfGroup() {
  const std::scoped_lock lock(all_->mutex_);
  std::erase(all_->groups_, this);
}

std::unique_ptr<Declared> Declarations::OfGroup::take_all() {
  const std::scoped_lock lock(all_->mutex_);
  has_any_.store(false, std::memory_order_relaxed);
  return std::move(declared_);
}

void Declarations::add(const std::vector<std::int64_t>& world_ranks, const CallHash& hash,
                       const CallWords& words, DeclaredKind kind) {
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
    (kind == DeclaredKind::call ? declared.calls : declared.values).add(hash);
    if (declared.latest.size() == kLatest) declared.latest.erase(declared.latest.begin());
    declared.latest.push_back(words);
    ++declared.count;
    group->has_any_.store(true, std::memory_order_relaxed);
  }
}

std::uint64_t Declarations::number_of_next_tensor(const std::vector<std::int64_t>& world_ranks) {
  const std::scoped_lock lock(mutex_);
  return ++tensors_made_[world_ranks];
}

void Declarations::restart_count() {
  const std::scoped_lock lock(mutex_);
  tensors_made_.clear();
  replicas_->clear();
}

void Declarations::forget(const std::vector<int>& world_ranks) {
  restart_count();
  const std::scoped_lock lock(mutex_);
  for (OfGroup* group : groups_) {
    const std::vector<int>& members = group->world_ranks_;
    if (!std::includes(world_ranks.begin(), world_ranks.end(), members.begin(), members.end())) continue;
    group->declared_.reset();
    group->has_any_.store(false, std::memory_order_relaxed);
  }
}

const std::shared_ptr<Declarations>& declarations_of_process() {
  static const auto* const declarations = new std::shared_ptr<Declarations>(std::make_shared<Declarations>());
  return *declarations;
}

}  // namespace meshtorch::internal

// What one rank owns, found from any of its threads.
#include "world/rank_context.h"

#include <pthread.h>
#include <torch/csrc/distributed/c10d/RankLocal.hpp>

#include <algorithm>
#include <numeric>

#include "backends/backend.h"
#include "runtime/blocking.h"
#include "signature/collective_signature.h"
#include "world/rank_generator.h"

namespace meshtorch::internal {
namespace {

struct Slot {
  std::shared_ptr<RankContext> context;
};

std::shared_ptr<RankContext>& process_context() {
  static std::shared_ptr<RankContext> context;
  return context;
}

// A child that a rank forks is no rank: the other threads of groups and stores are not there, and what the
// rank says of its end is not for the child to say. Nothing of it is ended there either. Runs in the child,
// where no other thread is.
void forget_in_child() { [[maybe_unused]] static const auto* kept = new auto(std::move(process_context())); }

// The level of the rank that this process is: asked at each collective, so without a lock.
std::atomic<Agreement> process_agreement = Agreement::on;

Agreement agreement_of_this_rank() {
  const auto& context = c10d::RankLocal<Slot>::get().context;
  return context ? context->world().agreement : process_agreement.load(std::memory_order_relaxed);
}

std::mutex& process_mutex() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

RankContext::RankContext(World world) : world_(std::move(world)), random_(starting_random().peek()) {
  agreement_of_rank = &agreement_of_this_rank;
  if (!world_.threads) process_agreement = world_.agreement;
  std::vector<std::int64_t> all(static_cast<std::size_t>(world_.size));
  std::iota(all.begin(), all.end(), 0);
  default_group_ = group(all);
  if (world_.threads) plain_generator_ = copy_of_default_generator();
}

void RankContext::leave() {
  is_left_ = true;
  // Destroyed outside the lock: a backend joins its threads, and a store may end with its last user.
  std::vector<c10::intrusive_ptr<c10d::ProcessGroup>> ended;
  c10::intrusive_ptr<c10d::Store> store;
  const std::scoped_lock lock(mutex_);
  for (const auto& [ranks, group] : groups_) {
    group->is_left = true;
    ended.push_back(std::move(group->process_group));
  }
  for (const auto& [axis, group] : groups_of_axes_) {
    group->is_left = true;
    ended.push_back(std::move(group->process_group));
  }
  store = std::move(world_.store);
}

std::shared_ptr<const GroupImpl> RankContext::group(const std::vector<std::int64_t>& ranks) {
  std::promise<void> is_over;
  for (;;) {
    std::shared_future<void> other_thread;
    {
      const std::scoped_lock lock(mutex_);
      if (const auto known = groups_.find(ranks); known != groups_.end()) return known->second;
      const auto [entry, is_new] = being_made_.try_emplace(ranks);
      if (is_new) {
        entry->second = is_over.get_future().share();
        break;
      }
      other_thread = entry->second;
    }
    const Blocking blocking;
    other_thread.wait();
  }
  std::shared_ptr<GroupImpl> made;
  const auto finish = [&] {
    const std::scoped_lock lock(mutex_);
    if (made) groups_[ranks] = made;
    being_made_.erase(ranks);
    is_over.set_value();
  };
  try {
    made = make_group(ranks);
  } catch (...) {
    finish();
    throw;
  }
  finish();
  return made;
}

std::shared_ptr<GroupImpl> RankContext::new_group(const std::vector<std::int64_t>& ranks) const {
  auto made = std::make_shared<GroupImpl>();
  made->ranks = ranks;
  made->owner = this;
  made->owner_rank = world_.rank;
  const auto self = std::find(ranks.begin(), ranks.end(), world_.rank);
  if (self != ranks.end()) made->rank = static_cast<int>(self - ranks.begin());
  return made;
}

std::shared_ptr<GroupImpl> RankContext::make_group(const std::vector<std::int64_t>& ranks) const {
  auto made = new_group(ranks);
  if (made->rank >= 0)
    made->process_group =
        world_.make_group ? world_.make_group(ranks) : make_process_group(world_, ranks, made->rank);
  return made;
}

std::shared_ptr<const GroupImpl> RankContext::group_of_axis(const std::string& name,
                                                            const std::vector<std::int64_t>& ranks) {
  const std::scoped_lock lock(mutex_);
  const auto found = groups_of_axes_.find({name, ranks});
  return found == groups_of_axes_.end() ? nullptr : found->second;
}

void RankContext::set_group_of_axis(const std::string& name, const std::vector<std::int64_t>& ranks,
                                    c10::intrusive_ptr<c10d::ProcessGroup> process_group) {
  auto made = new_group(ranks);
  made->process_group = std::move(process_group);
  const std::scoped_lock lock(mutex_);
  groups_of_axes_[{name, ranks}] = std::move(made);
}

void RankContext::leave_groups() {
  const std::scoped_lock lock(mutex_);
  for (const auto& [ranks, group] : groups_) {
    if (group->process_group && !world_.make_group) group->process_group->shutdown();
  }
}

std::shared_ptr<const GroupImpl> RankContext::find_group(const std::vector<std::int64_t>& ranks) {
  const std::scoped_lock lock(mutex_);
  const auto found = groups_.find(ranks);
  return found == groups_.end() ? nullptr : found->second;
}

std::shared_ptr<const GroupImpl> RankContext::find_group(
    const c10::intrusive_ptr<c10d::ProcessGroup>& process_group) {
  const std::scoped_lock lock(mutex_);
  for (const auto& [ranks, group] : groups_) {
    if (group->process_group == process_group) return group;
  }
  for (const auto& [axis, group] : groups_of_axes_) {
    if (group->process_group == process_group) return group;
  }
  return nullptr;
}

std::shared_ptr<MeshImpl> RankContext::intern(const std::string& content,
                                              const std::function<std::shared_ptr<MeshImpl>()>& make) {
  {
    const std::scoped_lock lock(mutex_);
    if (const auto found = meshes_.find(content); found != meshes_.end()) return found->second;
  }
  auto made = make();
  const std::scoped_lock lock(mutex_);
  return meshes_.try_emplace(content, std::move(made)).first->second;
}

RandomSource& starting_random() {
  static RandomSource source({.seed = kFirstSeed, .number = 0});
  return source;
}

std::shared_ptr<RankContext> current_rank_or_null() {
  if (const auto& context = c10d::RankLocal<Slot>::get().context) return context;
  const std::scoped_lock lock(process_mutex());
  return process_context();
}

std::shared_ptr<RankContext> current_rank() {
  auto context = current_rank_or_null();
  TORCH_CHECK(
      context,
      "meshtorch: this rank has not joined a world of ranks\n  do: call init_process_group() first, or run "
      "inside spawn(n, fn)");
  return context;
}

bool is_another_rank(const RankContext* owner) {
  const RankContext* rank = c10d::RankLocal<Slot>::get().context.get();
  return rank != nullptr && owner != nullptr && rank != owner;
}

void set_thread_rank(std::shared_ptr<RankContext> context) {
  if (context) share_default_generator();
  use_rank_generator(context != nullptr);
  const auto old = std::exchange(c10d::RankLocal<Slot>::get().context, std::move(context));
  if (old) old->leave();
}

void set_process_rank(std::shared_ptr<RankContext> context) {
  if (context) share_default_generator();
  [[maybe_unused]] static const int watches_forks = pthread_atfork(nullptr, nullptr, &forget_in_child);
  std::shared_ptr<RankContext> old;
  {
    const std::scoped_lock lock(process_mutex());
    old = std::exchange(process_context(), std::move(context));
  }
  if (old) old->leave();
}

}  // namespace meshtorch::internal

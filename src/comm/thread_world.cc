// The meeting of thread ranks: a barrier with time limit, agreement check, and news of failed ranks.
#include "comm/thread_world.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "comm/blocking.h"
#include "comm/vector_math.h"

namespace meshtorch {

ThreadMeeting::ThreadMeeting(ThreadWorld& world, std::vector<int> world_ranks)
    : world_(world),
      world_ranks_(std::move(world_ranks)),
      calls_(world_ranks_.size()),
      attendance_(world_ranks_.size()) {}

const std::vector<const ThreadCall*>& ThreadMeeting::enter(int rank, const ThreadCall& call,
                                                           std::chrono::milliseconds timeout) {
  const auto slot = static_cast<std::size_t>(rank);
  const Blocking blocking;
  std::unique_lock lock(world_.mutex_);
  calls_[slot] = &call;
  attendance_[slot].count += 1;
  attendance_[slot].name = call.name;
  attendance_[slot].inside = true;
  await_entry(lock, rank, timeout);
  const std::string problem = disagreement();
  if (!problem.empty()) {
    await_exit(lock, rank);  // the peers may still be reading this rank's call
    lock.unlock();
    TORCH_CHECK(false, problem);
  }
  return calls_;
}

void ThreadMeeting::sync(int rank, const std::string& failure) {
  const Blocking blocking;
  std::unique_lock lock(world_.mutex_);
  if (failure_.empty() && !failure.empty()) {
    failure_ = "rank " + std::to_string(world_ranks_[static_cast<std::size_t>(rank)]) + ": " + failure;
  }
  await_exit(lock, rank);
  if (last_failure_.empty()) return;
  const std::string problem = last_failure_;  // the next collective may clear it once the lock is gone
  lock.unlock();
  TORCH_CHECK_VALUE(false, "meshtorch: a collective failed on ", problem);
}

bool ThreadMeeting::arrive_locked() {
  if (++arrived_ < size()) return false;
  arrived_ = 0;
  ++generation_;
  last_failure_ = std::exchange(failure_, {});
  changed_.notify_all();
  return true;
}

void ThreadMeeting::await_exit(std::unique_lock<std::mutex>& lock, int rank) {
  const std::uint64_t generation = generation_;
  if (!arrive_locked()) changed_.wait(lock, [&] { return generation_ != generation; });
  attendance_[static_cast<std::size_t>(rank)].inside = false;
}

void ThreadMeeting::await_entry(std::unique_lock<std::mutex>& lock, int rank,
                                std::chrono::milliseconds timeout) {
  const std::uint64_t generation = generation_;
  if (arrive_locked()) return;
  std::string obstacle;
  const auto over = [&] {
    if (generation_ != generation) return true;
    obstacle = world_.obstacle(world_ranks_);
    return !obstacle.empty();
  };
  const bool in_time = changed_.wait_for(lock, timeout, over);
  if (generation_ != generation) return;
  --arrived_;
  const std::string where = describe();
  attendance_[static_cast<std::size_t>(rank)].inside = false;
  lock.unlock();
  TORCH_CHECK(in_time, "meshtorch: a collective did not complete in ", timeout.count(), " ms\n  ", where,
              "\n  do: see that all ranks of the group call the same collectives in the same order");
  TORCH_CHECK(false, "meshtorch: a collective cannot complete: ", obstacle, "\n  ", where,
              "\n  do: see that no rank of the group leaves before the others");
}

std::string ThreadMeeting::disagreement() const {
  const auto differs = [&](const ThreadCall* c) { return c->signature != calls_[0]->signature; };
  if (std::none_of(calls_.begin(), calls_.end(), differs)) return {};
  std::string text = "meshtorch: the ranks of a group disagree on a collective";
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    text += "\n  rank " + std::to_string(world_ranks_[i]) + ": " + calls_[i]->signature;
  }
  return text + "\n  do: call the same collective with the same shape and type on every rank";
}

std::string ThreadMeeting::describe() const {
  std::string text;
  for (std::size_t i = 0; i < attendance_.size(); ++i) {
    const Attendance& a = attendance_[i];
    text.append(text.empty() ? "rank " : "; rank ").append(std::to_string(world_ranks_[i])).append(": ");
    if (a.count == 0) {
      text.append("has called nothing in this group");
    } else {
      text.append(a.inside ? "is in " : "has left ")
          .append(a.name)
          .append(" #")
          .append(std::to_string(a.count));
    }
  }
  return text;
}

ThreadWorld::ThreadWorld(int size)
    : state_(static_cast<std::size_t>(size), RankState::running), joined_(static_cast<std::size_t>(size)) {
  settle_vector_math();
}

bool ThreadWorld::join(int rank) {
  const std::scoped_lock lock(mutex_);
  const auto has_left = [](RankState state) { return state != RankState::running; };
  if (std::any_of(state_.begin(), state_.end(), has_left)) return false;
  TORCH_CHECK_VALUE(!joined_[static_cast<std::size_t>(rank)],
                    "meshtorch: two threads joined one world as rank ", rank,
                    "\n  do: give each thread a rank of its own");
  joined_[static_cast<std::size_t>(rank)] = true;
  return true;
}

std::shared_ptr<ThreadMeeting> ThreadWorld::meeting(const std::vector<int>& world_ranks) {
  const std::scoped_lock lock(mutex_);
  auto& meeting = meetings_[world_ranks];
  if (!meeting) meeting = std::make_shared<ThreadMeeting>(*this, world_ranks);
  return meeting;
}

void ThreadWorld::fail(int rank, std::exception_ptr error, const std::string& what) {
  const std::scoped_lock lock(mutex_);
  state_[static_cast<std::size_t>(rank)] = RankState::failed;
  if (failed_rank_ < 0) {
    failed_rank_ = rank;
    failed_what_ = what;
    failure_ = std::move(error);
  }
  wake_all();
}

void ThreadWorld::finish(int rank) {
  const std::scoped_lock lock(mutex_);
  state_[static_cast<std::size_t>(rank)] = RankState::returned;
  wake_all();
}

int ThreadWorld::failed_rank() const {
  const std::scoped_lock lock(mutex_);
  return failed_rank_;
}

std::exception_ptr ThreadWorld::failure() const {
  const std::scoped_lock lock(mutex_);
  return failure_;
}

std::string ThreadWorld::obstacle(const std::vector<int>& world_ranks) const {
  if (failed_rank_ >= 0) return "rank " + std::to_string(failed_rank_) + " failed: " + failed_what_;
  for (const int rank : world_ranks) {
    if (state_[static_cast<std::size_t>(rank)] == RankState::returned) {
      return "rank " + std::to_string(rank) + " has already returned";
    }
  }
  return {};
}

void ThreadWorld::wake_all() {
  for (auto& [ranks, meeting] : meetings_) meeting->changed_.notify_all();
}

}  // namespace meshtorch

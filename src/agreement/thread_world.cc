// Ranks that are threads of one process.
#include "agreement/thread_world.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "agreement/meeting.h"
#include "agreement/meeting_bell.h"
#include "agreement/segment.h"
#include "liveness/flight_record.h"
#include "liveness/waits.h"
#include "runtime/mkl_kernels.h"

namespace meshtorch::internal {
namespace {

// More is read where it lies; this much is copied, so that ranks meet once and not twice.
constexpr std::size_t kThreadStage = std::size_t{32} << 10;
constexpr std::align_val_t kCacheLine{64};

}  // namespace

void ThreadWorld::FreeMemory::operator()(MeetingMemory* memory) const {
  ::operator delete(memory, kCacheLine);
}

ThreadWorld::ThreadWorld(int size)
    : state_(static_cast<std::size_t>(size), RankState::running),
      joined_(static_cast<std::size_t>(size)),
      heard_of_(static_cast<std::size_t>(size), -1),
      threads_(static_cast<std::size_t>(size)) {
  warm_up_mkl_kernels();
  for (int rank = 0; rank < size; ++rank) local_calls_.push_back(std::make_shared<LocalCallLog>());
}

ThreadWorld::~ThreadWorld() = default;

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

std::unique_ptr<GroupMeeting> ThreadWorld::meeting(const std::vector<int>& world_ranks, int rank) {
  const std::scoped_lock lock(mutex_);
  auto& memory = meetings_[world_ranks];
  if (!memory) {
    const int members = static_cast<int>(world_ranks.size());
    const std::size_t bytes = MeetingMemory::bytes_for(members, kThreadStage);
    void* room = std::memset(::operator new(bytes, kCacheLine), 0, bytes);
    memory.reset(MeetingMemory::make(room, members, kThreadStage));
  }
  const int world_rank = world_ranks[static_cast<std::size_t>(rank)];
  int& thread = threads_[static_cast<std::size_t>(world_rank)];
  if (thread == 0) thread = gettid();  // it makes the group of all ranks itself
  std::shared_ptr<FlightRecord>& record = records_[world_rank];
  if (!record) record = flight_record_of(world_rank, size());
  GroupMeeting::PeerServices services{
      world_ranks,
      size(),
      /*are_processes=*/false,
      [this, world_ranks] { return WhyUnreachable{why_unreachable(world_ranks)}; },
      record,
      [record](const std::string& problem) { record->note_failure(problem); },
      [this, world_rank](const Wait* wait) { tell_wait(world_rank, wait); },
      [this, world_rank](const auto& late) { return follow(world_rank, late); },
      local_calls(world_rank),
      [this, world_rank](const auto& failed, std::chrono::milliseconds timeout) {
        tell_failure(world_rank, failed, timeout);
      }};
  return std::make_unique<GroupMeeting>(*memory, rank, std::move(services));
}

void ThreadWorld::fail(int rank, std::exception_ptr error, const std::string& what) {
  close_record(rank, "the rank failed: " + what);
  const std::scoped_lock lock(mutex_);
  state_[static_cast<std::size_t>(rank)] = RankState::failed;
  // A rank whose call failed may come here after those who heard of it.
  if (failed_rank_ < 0 || rank == failed_by_) {
    const auto record = records_.find(rank);
    const bool is_of_collective = record != records_.end() && !record->second->failure().empty();
    failed_by_ = is_of_collective ? heard_of_[static_cast<std::size_t>(rank)] : -1;
    failed_rank_ = rank;
    failed_what_ = what;
    failure_ = std::move(error);
  }
  wake_all();
}

void ThreadWorld::close_record(int rank, const std::string& reason) {
  std::shared_ptr<FlightRecord> record;
  {
    const std::scoped_lock lock(mutex_);
    if (const auto found = records_.find(rank); found != records_.end()) record = found->second;
  }
  if (record) record->write_at_end(reason);
}

void ThreadWorld::finish(int rank) {
  close_record(rank, "the rank returned");
  const std::scoped_lock lock(mutex_);
  state_[static_cast<std::size_t>(rank)] = RankState::returned;
  wake_all();
}

template <class Visit>
void ThreadWorld::visit_slots(int rank, const Visit& visit) const {
  const std::scoped_lock lock(mutex_);
  for (const auto& [ranks, memory] : meetings_) {
    const auto member = std::find(ranks.begin(), ranks.end(), rank);
    if (member != ranks.end()) visit(memory->slot(static_cast<int>(member - ranks.begin())));
  }
}

void ThreadWorld::note_error(int rank, const std::string& text) {
  visit_slots(rank, [&](MeetingSlot& slot) { slot.say(ExitReason::error, text); });
}

void ThreadWorld::tell_failure(int rank, const FailedCall& failed, std::chrono::milliseconds timeout) {
  struct Membership {
    const std::vector<int>& ranks;
    MeetingMemory& memory;
    int member;
  };
  std::vector<Membership> concerned;
  {
    const std::scoped_lock lock(mutex_);
    for (const auto& [ranks, memory] : meetings_) {
      const auto member = std::find(ranks.begin(), ranks.end(), rank);
      if (member != ranks.end() && failed.concerns(ranks))
        concerned.push_back({ranks, *memory, static_cast<int>(member - ranks.begin())});
    }
  }
  for (const Membership& own : concerned)
    wait_until_all_know(
        own.memory, own.member, timeout, [&] { return !why_unreachable(own.ranks).empty(); }, rank);
  local_calls(rank)->forget(failed.concerned);
  local_calls(rank)->restart_counts();
  const std::scoped_lock lock(mutex_);
  heard_of_[static_cast<std::size_t>(rank)] = failed.rank == rank ? -1 : failed.rank;
  for (const auto& [ranks, memory, member] : concerned) {
    memory.note_failure(member, failed);
    ring(memory);
  }
}

void ThreadWorld::tell_wait(int rank, const Wait* wait) {
  visit_slots(rank, [&](MeetingSlot& slot) { slot.tell_wait(WaitPlace::group, wait); });
}

std::string ThreadWorld::follow(int rank, const std::vector<int>& late) const {
  return follow_waits(rank, late, [this](int other) -> std::optional<Whereabouts> {
    Whereabouts found;
    visit_slots(other, [&](const MeetingSlot& slot) {
      if (found.waits.empty()) found.waits = slot.read_waits();
    });
    const std::scoped_lock lock(mutex_);
    const int thread = threads_[static_cast<std::size_t>(other)];
    if (thread == 0) return std::nullopt;
    found.state = "its thread " + process_state(thread);
    return found;
  });
}

int ThreadWorld::failed_rank() const {
  const std::scoped_lock lock(mutex_);
  return failed_rank_;
}

std::exception_ptr ThreadWorld::failure() const {
  const std::scoped_lock lock(mutex_);
  return failure_;
}

std::string ThreadWorld::why_unreachable(const std::vector<int>& world_ranks) const {
  const std::scoped_lock lock(mutex_);
  if (failed_rank_ >= 0) return "rank " + std::to_string(failed_rank_) + " failed: " + failed_what_;
  for (const int rank : world_ranks) {
    if (state_[static_cast<std::size_t>(rank)] == RankState::returned) {
      return "rank " + std::to_string(rank) + " has already returned";
    }
  }
  return {};
}

void ThreadWorld::wake_all() {
  for (auto& [ranks, memory] : meetings_) ring(*memory);
}

}  // namespace meshtorch::internal

// Calls that failed by the data of one rank: told to the others, and thrown by each of them once, so that all
// leave the same step.
#include <c10/util/Exception.h>

#include <algorithm>

#include "agreement/meeting.h"
#include "agreement/meeting_bell.h"
#include "liveness/fault_lab.h"
#include "liveness/waits.h"
#include "runtime/blocking.h"

namespace meshtorch::internal {
namespace {

using std::chrono::milliseconds;

}  // namespace

void wait_until_all_know(MeetingMemory& memory, int rank, milliseconds timeout,
                         const std::function<bool()>& is_hindered, int thread_rank) {
  const auto all_know = [&] { return memory.behind(rank) < 0; };
  if (all_know()) return;
  const Blocking blocking;
  const auto end = std::chrono::steady_clock::now() + timeout;
  memory.sleepers.fetch_add(1);
  for (;;) {
    const std::uint32_t heard = memory.bell.load();
    if (all_know() || is_hindered() || std::chrono::steady_clock::now() >= end) break;
    if (FaultLab* lab = current_fault_lab(); lab != nullptr && thread_rank >= 0) {
      lab->at(FaultPoint::waiting, thread_rank);
    } else {
      wait_for_bell(memory.bell, heard, kLookout);
    }
  }
  memory.sleepers.fetch_sub(1);
}

void GroupMeeting::attend_to_failures(milliseconds timeout) {
  const std::uint64_t known = memory_.failures.load();
  meeting_ = meeting_of(memory_.gathering.load());  // it cannot be held without this rank
  const auto unheard = [this] { return failed_among(late_to_meeting()); };
  const auto behind = [this] { return memory_.behind(rank_); };
  if (unheard() < 0 && behind() >= 0) {
    const std::string missing = "heard that a call failed: " + memory_.slot(rank_).failure.read().words;
    const auto is_broken = [this] { return memory_.is_broken.load() != 0; };
    wait_until([&] { return behind() < 0 || unheard() >= 0 || is_broken(); }, timeout,
               [&] { return behind() < 0 ? rank_ : behind(); }, missing);
    check_usable();  // whoever was in a posted call could not leave it in order
  }
  if (const int member = unheard(); member >= 0) hear(member, timeout);
  if (failed_among(services_.world_ranks) < 0) failures_known_ = known;
}

int GroupMeeting::failed_among(const std::vector<int>& world_ranks) const {
  const std::uint64_t mine = memory_.slot(rank_).failures;
  for (int r = 0; r < size(); ++r) {
    const bool is_asked =
        std::find(world_ranks.begin(), world_ranks.end(), world_rank(r)) != world_ranks.end();
    if (is_asked && memory_.slot(r).failures > mine) return r;
  }
  return -1;
}

void GroupMeeting::hear(int member, milliseconds timeout) {
  const FailedCall failed = memory_.slot(member).failure.read();
  if (services_.pass_on) services_.pass_on(failed, timeout);
  note_failure(c10::str("a call failed on rank ", failed.rank, "\n  ", failed.words));
  const std::string text =
      c10::str("meshtorch: a call failed on rank ", failed.rank, " by the data it has there\n  ",
               failed.words, "\n  found by rank ", world_rank(rank_), " at the next collective of ",
               list_ranks(services_.world_ranks),
               "\n  do: give right values to that call; every rank leaves what "
               "it was doing by an error, and can go on");
  switch (failed.kind) {
    case FailedCall::Kind::index:
      C10_THROW_ERROR(IndexError, text);
    case FailedCall::Kind::value:
      C10_THROW_ERROR(ValueError, text);
    case FailedCall::Kind::not_implemented:
      C10_THROW_ERROR(NotImplementedError, text);
    case FailedCall::Kind::error:
      break;
  }
  C10_THROW_ERROR(Error, text);
}

}  // namespace meshtorch::internal

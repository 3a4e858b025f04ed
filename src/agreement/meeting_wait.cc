// How a rank comes to a meeting and waits for the others: it watches for a while, then sleeps, looks from
// time to time at those who are late, and says for whom it waits.
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "agreement/meeting.h"
#include "agreement/meeting_bell.h"
#include "liveness/fault_lab.h"
#include "liveness/waits.h"
#include "runtime/blocking.h"

namespace meshtorch::internal {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::chrono::nanoseconds kShortestWatch = std::chrono::microseconds(5);

std::uint64_t come_to(std::uint64_t gathering) { return gathering & 0xFFFF; }

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A wait that is longer is told of, while it goes on.
milliseconds longest_silent_wait() {
  const char* seconds = std::getenv("MESHTORCH_WARN_AFTER");
  const double given = seconds == nullptr ? 0 : std::atof(seconds);
  return given > 0 ? milliseconds(static_cast<std::int64_t>(given * 1000)) : milliseconds(30000);
}

}  // namespace

bool GroupMeeting::is_over(std::uint64_t meeting) const {
  return meeting_of(memory_.gathering.load()) != meeting;
}

bool GroupMeeting::withdraw(std::uint64_t meeting) {
  std::uint64_t now = memory_.gathering.load();
  while (meeting_of(now) == meeting) {
    if (memory_.gathering.compare_exchange_weak(now, now - 1)) return true;
  }
  return false;
}

std::vector<int> GroupMeeting::late_to_meeting() const {
  std::vector<int> late;
  for (int r = 0; r < size(); ++r) {
    if (memory_.slot(r).meetings.load(std::memory_order_relaxed) <= meeting_) late.push_back(world_rank(r));
  }
  return late;
}

template <class Condition>
bool GroupMeeting::watch(const Condition& is_over) {
  if (current_fault_lab() != nullptr) return false;  // it says who runs
  // With more ranks than cores somebody else needs this one. Yielding would give it to any program for a
  // whole slice; a rank that sleeps is woken at once when the others have come.
  if (!may_watch_) return is_over();
  const auto begin = Clock::now();
  // No yielding here: on a busy machine another program would take the core for a whole slice, where a rank
  // that sleeps is woken in between. A rank that wants this core has it as soon as patience is over.
  for (unsigned i = 1;; ++i) {
    if (is_over()) {
      patience_ = std::min(2 * patience_, kLongestWatch);
      return true;
    }
    pause_briefly();
    if (i % 64 == 0 && Clock::now() - begin > patience_) break;
  }
  patience_ = std::max(patience_ / 2, kShortestWatch);
  return false;
}

GroupMeeting::Outcome GroupMeeting::gather(milliseconds timeout, bool may_give_up) {
  if (arrive()) return Outcome::complete;
  const Blocking blocking;
  return sleep_until_all_come(timeout, may_give_up);
}

bool GroupMeeting::arrive() {
  fault_point(FaultPoint::arriving, world_rank(rank_));
  std::uint64_t now = memory_.gathering.load(std::memory_order_relaxed);
  meeting_ = meeting_of(now);  // it cannot be held without this rank
  memory_.slot(rank_).meetings.store(meeting_ + 1, std::memory_order_relaxed);
  for (;;) {
    const bool is_last = come_to(now) + 1 == static_cast<std::uint64_t>(size());
    if (!memory_.gathering.compare_exchange_weak(now, is_last ? (meeting_ + 1) << 16 : now + 1)) continue;
    if (!is_last) break;
    ring(memory_);
    return true;
  }
  const Blocking blocking;
  return watch([this] { return is_over(meeting_); });
}

GroupMeeting::Outcome GroupMeeting::sleep_until_all_come(milliseconds timeout, bool may_give_up) {
  const auto all_have_come = [this] { return is_over(meeting_); };
  const auto wait = [this] { return wait_in_meeting(); };
  if (!may_give_up) return sleep(all_have_come, timeout, nullptr, wait);
  return sleep(all_have_come, timeout, [this] { return withdraw(meeting_); }, wait);
}

void GroupMeeting::wait_until(const std::function<bool()>& is_there, milliseconds timeout,
                              const std::function<int()>& late, const std::string& missing) {
  check_usable();
  if (is_there()) return;
  const Blocking blocking;
  if (watch(is_there)) return;
  const auto wait = [&]() -> Wait {
    return {{world_rank(late())}, c10::str("rank ", world_rank(late()), ", which has not ", missing)};
  };
  // Who did what is waited for may have left since it was looked for.
  const Outcome outcome = sleep(is_there, timeout, [&] { return !is_there(); }, wait);
  if (outcome == Outcome::peer_failed) {  // what was posted before stays where it is
    memory_.is_broken.store(1);
    ring(memory_);
    hear(failed_among(services_.world_ranks), timeout);
  }
  if (outcome != Outcome::complete)
    give_up(outcome, timeout, c10::str("rank ", world_rank(late()), " has not ", missing),
            {world_rank(late())});
}

void GroupMeeting::ring_bell() { ring(memory_); }

GroupMeeting::Outcome GroupMeeting::sleep(const std::function<bool()>& is_over, milliseconds timeout,
                                          const std::function<bool()>& withdraw,
                                          const std::function<Wait()>& wait) {
  const auto begin = Clock::now();
  const milliseconds patience = longest_silent_wait();
  bool has_warned = false;
  memory_.sleepers.fetch_add(1);
  Outcome outcome = Outcome::complete;
  for (;;) {
    const std::uint32_t heard = memory_.bell.load();
    if (is_over()) break;
    const auto waited = std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
    if (!has_warned && waited >= patience) {
      has_warned = true;
      warn_of_wait(waited, wait().ranks);
    }
    if (services_.tell_wait && waited >= kLookout) {
      const Wait now = wait();
      tell_wait(&now);
    }
    milliseconds rest = has_warned ? milliseconds::max() : patience - waited;
    if (withdraw) {
      rest = std::min(rest, timeout - waited);
      if (memory_.failures.load() != failures_known_ && failed_among(wait().ranks) >= 0) {
        if (withdraw()) outcome = Outcome::peer_failed;
        break;
      }
      why_unreachable_ = services_.why_unreachable();
      if (why_unreachable_.is_there() || timeout <= waited) {
        if (withdraw()) outcome = why_unreachable_.is_there() ? Outcome::peer_gone : Outcome::timed_out;
        break;
      }
    }
    if (FaultLab* lab = current_fault_lab(); lab != nullptr && !services_.are_processes) {
      lab->at(FaultPoint::waiting, world_rank(rank_));
      continue;
    }
    wait_for_bell(memory_.bell, heard,
                  std::min(rest, services_.tell_wait ? kLookout : milliseconds(3600000)));
  }
  memory_.sleepers.fetch_sub(1);
  if (outcome == Outcome::complete) {
    tell_wait(nullptr);
  } else if (services_.tell_wait) {  // it stays told until the rank goes on
    Wait last = wait();
    last.is_given_up = true;
    tell_wait(&last);
  }
  if (Clock::now() - begin < kLongestWatch) patience_ = kLongestWatch;
  return outcome;
}

void GroupMeeting::tell_wait(const Wait* wait) {
  if (wait == nullptr && !has_told_) return;
  has_told_ = wait != nullptr;
  services_.tell_wait(wait);
}

Wait GroupMeeting::wait_in_meeting() const {
  const MeetingSlot& mine = memory_.slot(rank_);
  const std::vector<int> late = late_to_meeting();
  const std::string origin = mine.read_origin();
  return {late, c10::str(list_ranks(late), " in ",
                         to_string(static_cast<CallKind>(mine.kind.load(std::memory_order_relaxed))), " #",
                         mine.calls.load(std::memory_order_relaxed), " of ",
                         list_ranks(services_.world_ranks), origin.empty() ? "" : " for " + origin)};
}

void GroupMeeting::warn_of_wait(milliseconds waited, const std::vector<int>& late) const {
  // At once and in one piece: a warning of LibTorch's may be held back until the wait is over.
  const std::string text =
      c10::str("meshtorch: rank ", world_rank(rank_), " has waited for ",
               static_cast<double>(waited.count()) / 1000, " s in a collective\n  ", describe(), follow(late),
               "\n  do: look at what the ranks that are not in it do; at the time limit it is an error\n");
  std::fputs(text.c_str(), stderr);
}

}  // namespace meshtorch::internal

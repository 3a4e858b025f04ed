// One rank's part in the meetings of a group. Nothing is formatted, locked or allocated while ranks agree.
#include "comm/meeting.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <type_traits>
#include <utility>

#include "comm/blocking.h"
#include "comm/fault_lab.h"
#include "comm/meeting_bell.h"
#include "comm/waits.h"
#include "meshtorch/error.h"

namespace meshtorch::internal {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Watching pays up to what sleeping and being woken cost.
constexpr std::chrono::nanoseconds kLongestWatch = std::chrono::microseconds(200);
constexpr std::chrono::nanoseconds kShortestWatch = std::chrono::microseconds(5);
constexpr int kYields = 16;
constexpr std::size_t kOriginWords = std::extent_v<decltype(MeetingSlot::origin)>;

std::uint64_t come_to(std::uint64_t gathering) { return gathering & 0xFFFF; }

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int cores() {
  static const int count = static_cast<int>(std::thread::hardware_concurrency());
  return count;
}

// A wait that is longer is told of, while it goes on.
milliseconds longest_silent_wait() {
  const char* seconds = std::getenv("MESHTORCH_WARN_AFTER");
  const double given = seconds == nullptr ? 0 : std::atof(seconds);
  return given > 0 ? milliseconds(static_cast<std::int64_t>(given * 1000)) : milliseconds(30000);
}

void write_origin(MeetingSlot& slot) {
  std::uint64_t words[kOriginWords] = {};
  if (const CallOrigin* origin = CallOrigin::current()) {
    const std::string& name = origin->name();
    std::memcpy(words, name.data(), std::min(name.size(), sizeof(words)));
  }
  for (std::size_t i = 0; i < std::size(words); ++i)
    slot.origin[i].store(words[i], std::memory_order_relaxed);
}

std::string read_origin(const MeetingSlot& slot) {
  std::uint64_t words[kOriginWords + 1] = {};
  for (std::size_t i = 0; i < std::size(slot.origin); ++i)
    words[i] = slot.origin[i].load(std::memory_order_relaxed);
  return reinterpret_cast<const char*>(words);
}

}  // namespace

GroupMeeting::GroupMeeting(MeetingMemory& memory, int rank, Company company)
    : memory_(memory),
      rank_(rank),
      company_(std::move(company)),
      may_watch_(company_.ranks_on_host <= cores()),
      number_in_record_(company_.record ? company_.record->number_of({company_.world_ranks}) : 0),
      patience_(kLongestWatch) {
  if (company_.declarations)
    declared_in_group_ = std::make_unique<Declarations::OfGroup>(
        company_.declarations, company_.whole_group.empty() ? company_.world_ranks : company_.whole_group);
  TORCH_INTERNAL_ASSERT(size() == static_cast<int>(memory_.size) && size() < (1 << 16));
}

bool GroupMeeting::come(const GroupCall& call, std::unique_ptr<Declared> declared) {
  fault_point(FaultPoint::coming, world_rank(rank_));
  check_usable();
  tell_wait(nullptr);
  MeetingSlot& mine = memory_.slot(rank_);
  const std::uint64_t number = mine.calls.load(std::memory_order_relaxed) + 1;
  mine.calls.store(number, std::memory_order_relaxed);
  mine.kind.store(static_cast<std::uint32_t>(call.kind()), std::memory_order_relaxed);
  mine.is_inside.store(1, std::memory_order_relaxed);
  mine.last_words.store(LastWords::none, std::memory_order_relaxed);
  write_origin(mine);
  if (company_.record) place_in_record_ = company_.record->begin(number_in_record_, number, call);
  mine.brought[turn_].hash = call.hash();
  mine.brought[turn_].hash.add(number);
  declared_ = std::move(declared);
  if (declared_) mine.brought[turn_].hash.add(declared_->hash);
  const CallSplits* splits = call.splits();
  if (splits != nullptr && splits->sends.size() == memory_.size) {  // not of members on other hosts
    std::int64_t* numbers = memory_.numbers(rank_, turn_);
    std::copy(splits->receives.begin(), splits->receives.end(),
              std::copy(splits->sends.begin(), splits->sends.end(), numbers));
  }
  return arrive();
}

void GroupMeeting::check_usable() const {
  TORCH_CHECK(
      memory_.is_broken.load(std::memory_order_relaxed) == 0,
      "meshtorch: a group cannot be used any more, since a rank gave up in the middle of a collective\n  ",
      describe(), "\n  do: call destroy_process_group() and init_process_group() on all ranks");
}

void GroupMeeting::meet(const GroupCall& call, bool have_all_come, milliseconds timeout) {
  wait_for_all(have_all_come, timeout);
  if (!is_of_one_mind()) disagree(call, timeout);
  if (call.splits() != nullptr) check_splits(call, timeout);
}

void GroupMeeting::wait_for_all(bool have_all_come, milliseconds timeout) {
  if (!have_all_come) {
    const Blocking blocking;
    const Outcome outcome = sleep_until_all_come(timeout, /*may_give_up=*/true);
    if (outcome != Outcome::met) {
      MeetingSlot& mine = memory_.slot(rank_);
      const std::string state = describe();
      const std::vector<int> late = late_to_meeting();
      mine.meetings.store(meeting_);  // it has not come after all
      if (outcome != Outcome::told) give_up(outcome, timeout, state, late);
      mine.calls.fetch_sub(1);  // the call is the others' next one too
      leave();
      hear(failed_among(company_.world_ranks), timeout);
    }
  }
  entered_turn_ = turn_;
  turn_ ^= 1;
}

bool GroupMeeting::is_of_one_mind() const {
  const CallHash& expected = brought_by(0).hash;
  for (int r = 1; r < size(); ++r) {
    if (brought_by(r).hash != expected) return false;
  }
  return true;
}

std::string GroupMeeting::words(const GroupCall& call) const {
  return declared_ ? call.text() + declared_->text() : call.text();
}

void GroupMeeting::check_splits(const GroupCall& call, milliseconds timeout) {
  const std::string problem = find_mismatch(call, company_.world_ranks, [this](std::size_t rank) {
    return memory_.numbers(static_cast<int>(rank), entered_turn_);
  });
  if (problem.empty()) return;
  gather_inside(timeout);  // peers may still read what this rank shows
  leave();
  mismatch(problem);
}

void GroupMeeting::mismatch(const std::string& problem) const {
  note_failure(problem);
  TORCH_CHECK_VALUE(false, "meshtorch: ", problem, "\n  do: let each rank expect what the others send to it");
}

void GroupMeeting::next_stage(milliseconds timeout) {
  gather_inside(timeout);
  turn_ ^= 1;
}

void GroupMeeting::sync(milliseconds timeout) { gather_inside(timeout); }

void GroupMeeting::leave() {
  memory_.slot(rank_).is_inside.store(0, std::memory_order_relaxed);
  if (company_.record) company_.record->end(place_in_record_);
  fault_point(FaultPoint::left, world_rank(rank_));
}

void GroupMeeting::gather_inside(milliseconds timeout) {
  const Outcome outcome = gather(timeout, /*may_give_up=*/company_.are_processes);
  if (outcome == Outcome::met) return;
  memory_.is_broken.store(1);
  ring(memory_);
  if (outcome == Outcome::told) hear(failed_among(company_.world_ranks), timeout);
  give_up(outcome, timeout, describe(), late_to_meeting());
}

GroupMeeting::Outcome GroupMeeting::gather(milliseconds timeout, bool may_give_up) {
  if (arrive()) return Outcome::met;
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

std::vector<int> GroupMeeting::late_to_meeting() const {
  std::vector<int> late;
  for (int r = 0; r < size(); ++r) {
    if (memory_.slot(r).meetings.load(std::memory_order_relaxed) <= meeting_) late.push_back(world_rank(r));
  }
  return late;
}

void GroupMeeting::tell_wait(const Wait* wait) {
  if (wait == nullptr && !has_told_) return;
  has_told_ = wait != nullptr;
  company_.tell_wait(wait);
}

Wait GroupMeeting::wait_in_meeting() const {
  const MeetingSlot& mine = memory_.slot(rank_);
  const std::vector<int> late = late_to_meeting();
  const std::string origin = read_origin(mine);
  return {late, c10::str(list_ranks(late), " in ",
                         to_string(static_cast<CallKind>(mine.kind.load(std::memory_order_relaxed))), " #",
                         mine.calls.load(std::memory_order_relaxed), " of ", list_ranks(company_.world_ranks),
                         origin.empty() ? "" : " for " + origin)};
}

void GroupMeeting::ring_bell() { ring(memory_); }

void GroupMeeting::wait_until(const std::function<bool()>& is_there, milliseconds timeout,
                              const std::function<int()>& late, const std::string& missing) {
  check_usable();
  if (is_there()) return;
  const Blocking blocking;
  if (watch(is_there)) return;
  const auto wait = [&]() -> Wait {
    return {{world_rank(late())}, c10::str("rank ", world_rank(late()), ", which has not ", missing)};
  };
  const Outcome outcome = sleep(is_there, timeout, [] { return true; }, wait);
  if (outcome == Outcome::told) {  // what was posted before stays where it is
    memory_.is_broken.store(1);
    ring(memory_);
    hear(failed_among(company_.world_ranks), timeout);
  }
  if (outcome != Outcome::met)
    give_up(outcome, timeout, c10::str("rank ", world_rank(late()), " has not ", missing),
            {world_rank(late())});
}

bool GroupMeeting::is_over(std::uint64_t meeting) const {
  return meeting_of(memory_.gathering.load()) != meeting;
}

template <class Condition>
bool GroupMeeting::watch(const Condition& is_over) {
  if (current_fault_lab() != nullptr) return false;  // it says who runs
  const auto begin = Clock::now();
  if (!may_watch_) {  // let the others have the core
    for (int i = 0; i < kYields && Clock::now() - begin < kLongestWatch; ++i) {
      std::this_thread::yield();
      if (is_over()) return true;
    }
    return false;
  }
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

GroupMeeting::Outcome GroupMeeting::sleep(const std::function<bool()>& is_over, milliseconds timeout,
                                          const std::function<bool()>& withdraw,
                                          const std::function<Wait()>& wait) {
  const auto begin = Clock::now();
  const milliseconds patience = longest_silent_wait();
  bool has_warned = false;
  memory_.sleepers.fetch_add(1);
  Outcome outcome = Outcome::met;
  for (;;) {
    const std::uint32_t heard = memory_.bell.load();
    if (is_over()) break;
    const auto waited = std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
    if (!has_warned && waited >= patience) {
      has_warned = true;
      warn_of_wait(waited, wait().ranks);
    }
    if (company_.tell_wait && waited >= kLookout) {
      const Wait now = wait();
      tell_wait(&now);
    }
    milliseconds rest = has_warned ? milliseconds::max() : patience - waited;
    if (withdraw) {
      rest = std::min(rest, timeout - waited);
      if (memory_.failures.load() != failures_known_ && failed_among(wait().ranks) >= 0) {
        if (withdraw()) outcome = Outcome::told;
        break;
      }
      obstacle_ = company_.obstacle();
      if (obstacle_.is_there() || timeout <= waited) {
        if (withdraw()) outcome = obstacle_.is_there() ? Outcome::hindered : Outcome::late;
        break;
      }
    }
    if (FaultLab* lab = current_fault_lab(); lab != nullptr && !company_.are_processes) {
      lab->at(FaultPoint::waiting, world_rank(rank_));
      continue;
    }
    wait_for_bell(memory_.bell, heard, std::min(rest, company_.tell_wait ? kLookout : milliseconds(3600000)));
  }
  memory_.sleepers.fetch_sub(1);
  if (outcome == Outcome::met) {
    tell_wait(nullptr);
  } else if (company_.tell_wait) {  // it stays told until the rank goes on
    Wait last = wait();
    last.is_given_up = true;
    tell_wait(&last);
  }
  if (Clock::now() - begin < kLongestWatch) patience_ = kLongestWatch;
  return outcome;
}

void GroupMeeting::warn_of_wait(milliseconds waited, const std::vector<int>& late) const {
  // At once and in one piece: a warning of LibTorch's may be held back until the wait is over.
  const std::string text =
      c10::str("meshtorch: rank ", world_rank(rank_), " has waited for ",
               static_cast<double>(waited.count()) / 1000, " s in a collective\n  ", describe(), follow(late),
               "\n  do: look at what the ranks that are not in it do; at the time limit it is an error\n");
  std::fputs(text.c_str(), stderr);
}

bool GroupMeeting::withdraw(std::uint64_t meeting) {
  std::uint64_t now = memory_.gathering.load();
  while (meeting_of(now) == meeting) {
    if (memory_.gathering.compare_exchange_weak(now, now - 1)) return true;
  }
  return false;
}

void GroupMeeting::give_up(Outcome outcome, milliseconds timeout, const std::string& state,
                           const std::vector<int>& late) {
  const std::string problem =
      outcome == Outcome::late
          ? c10::str("did not complete in ", timeout.count(), " ms\n  ", state, follow(late))
          : c10::str("cannot complete: ", obstacle_.words, "\n  ", state);
  note_failure("a collective " + problem);
  leave();
  memory_.slot(rank_).say(LastWords::gave_up, "a collective " + problem);
  TORCH_CHECK(false, "meshtorch: a collective ", problem, "\n  do: ",
              outcome == Outcome::late
                  ? "see that all ranks of the group call the same collectives in the same order"
                  : "see that no rank of the group leaves before the others");
}

void GroupMeeting::disagree(const GroupCall& call, milliseconds timeout) {
  MeetingSlot& mine = memory_.slot(rank_);
  mine.write_words(words(call));
  gather_inside(timeout);
  std::vector<RankCall> calls;
  for (int r = 0; r < size(); ++r) {
    const MeetingSlot& slot = memory_.slot(r);
    calls.push_back({world_rank(r), slot.calls.load(std::memory_order_relaxed), slot.read_words()});
  }
  gather_inside(timeout);  // all have read the numbers
  mine.calls.store(last_number(calls), std::memory_order_relaxed);
  leave();
  disagreement(table_of(calls));
}

void GroupMeeting::disagreement(const std::string& table) const {
  note_failure("the ranks disagree" + table);
  throw DisagreementError(
      {__func__, __FILE__, __LINE__},
      c10::str("meshtorch: the ranks of a group disagree on a collective", table,
               "\n  do: call the same, with the same shapes, types and layouts, on every rank"));
}

std::string GroupMeeting::describe() const {
  std::uint64_t latest = 0;
  for (int r = 0; r < size(); ++r)
    latest = std::max(latest, memory_.slot(r).meetings.load(std::memory_order_relaxed));
  // Whether some rank has left the call of this number, or a later one.
  const auto was_left = [&](std::uint64_t call) {
    for (int r = 0; r < size(); ++r) {
      const MeetingSlot& slot = memory_.slot(r);
      if (slot.is_inside.load(std::memory_order_relaxed) == 0 &&
          slot.calls.load(std::memory_order_relaxed) >= call)
        return true;
    }
    return false;
  };
  std::string text;
  for (int r = 0; r < size(); ++r) {
    const MeetingSlot& slot = memory_.slot(r);
    text.append(text.empty() ? "rank " : "; rank ").append(std::to_string(world_rank(r))).append(": ");
    const std::uint64_t calls = slot.calls.load(std::memory_order_relaxed);
    if (calls == 0) {
      text.append("has called nothing in this group");
      continue;
    }
    const bool is_inside = slot.is_inside.load(std::memory_order_relaxed) != 0;
    text.append(is_inside ? "is in " : "has left ")
        .append(to_string(static_cast<CallKind>(slot.kind.load(std::memory_order_relaxed))))
        .append(" #")
        .append(std::to_string(calls));
    if (const std::string origin = read_origin(slot); !origin.empty()) text.append(" for ").append(origin);
    if (is_inside && (slot.meetings.load(std::memory_order_relaxed) < latest || was_left(calls)))
      text.append(", behind the others");
    if (slot.last_words == LastWords::error) text.append(", then failed: ").append(slot.read_words());
  }
  return text;
}

}  // namespace meshtorch::internal

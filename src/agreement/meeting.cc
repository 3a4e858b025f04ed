// One rank's part in the meetings of a group. Nothing is formatted, locked or allocated while ranks agree.
#include "agreement/meeting.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <thread>
#include <utility>

#include "agreement/meeting_bell.h"
#include "liveness/fault_lab.h"
#include "liveness/waits.h"
#include "meshtorch/error.h"
#include "runtime/blocking.h"

namespace meshtorch::internal {
namespace {

using std::chrono::milliseconds;

// Calls after which ranks hold equal data: programs make replicas equal by them.
bool makes_equal(CallKind kind) { return kind == CallKind::broadcast || kind == CallKind::scatter; }

// "\n  equal among themselves: ranks 0, 2\n  equal among themselves: rank 1", the largest party first.
std::string list_of_holders(const std::vector<int>& world_ranks, const std::vector<ReplicaSample>& shown) {
  std::map<std::uint64_t, std::vector<int>> by_checksum;
  for (std::size_t r = 0; r < shown.size(); ++r) by_checksum[shown[r].checksum].push_back(world_ranks[r]);
  std::vector<std::vector<int>> parties;
  for (auto& [checksum, ranks] : by_checksum) parties.push_back(std::move(ranks));
  std::sort(parties.begin(), parties.end(),
            [](const auto& a, const auto& b) { return a.size() != b.size() ? a.size() > b.size() : a < b; });
  std::string text;
  for (const std::vector<int>& ranks : parties) text += "\n  equal among themselves: " + list_ranks(ranks);
  return text;
}

int cores() {
  static const int count = static_cast<int>(std::thread::hardware_concurrency());
  return count;
}

}  // namespace

GroupMeeting::GroupMeeting(MeetingMemory& memory, int rank, PeerServices services)
    : memory_(memory),
      rank_(rank),
      services_(std::move(services)),
      may_watch_(services_.ranks_on_host <= cores()),
      number_in_record_(services_.record ? services_.record->number_of({services_.world_ranks}) : 0),
      patience_(kLongestWatch) {
  if (services_.local_calls)
    declared_in_group_ = std::make_unique<LocalCallLog::OfGroup>(services_.local_calls, members());
  replicas_in_group_ = replicas();
  TORCH_INTERNAL_ASSERT(size() == static_cast<int>(memory_.size) && size() < (1 << 16));
}

const std::vector<int>& GroupMeeting::members() const {
  return services_.whole_group.empty() ? services_.world_ranks : services_.whole_group;
}

std::unique_ptr<Replicas::OfGroup> GroupMeeting::replicas() const {
  if (!services_.local_calls) return nullptr;
  return std::make_unique<Replicas::OfGroup>(services_.local_calls->replicas(), members());
}

bool GroupMeeting::come(const CollectiveSignature& call, std::unique_ptr<Declared> declared) {
  fault_point(FaultPoint::coming, world_rank(rank_));
  check_usable();
  tell_wait(nullptr);
  MeetingSlot& mine = memory_.slot(rank_);
  const std::uint64_t number = mine.calls.load(std::memory_order_relaxed) + 1;
  mine.calls.store(number, std::memory_order_relaxed);
  mine.kind.store(static_cast<std::uint32_t>(call.kind()), std::memory_order_relaxed);
  mine.is_inside.store(1, std::memory_order_relaxed);
  mine.exit_reason.store(ExitReason::none, std::memory_order_relaxed);
  const CallOrigin* origin = CallOrigin::current();
  mine.write_origin(origin == nullptr ? std::string_view() : origin->name());
  if (services_.record) place_in_record_ = services_.record->begin(number_in_record_, number, call);
  mine.call_slots[turn_].hash = call.hash();
  mine.call_slots[turn_].hash.add(number);
  declared_ = std::move(declared);
  if (declared_) {
    mine.call_slots[turn_].hash.add(declared_->calls);
    if (!makes_equal(call.kind())) mine.call_slots[turn_].hash.add(declared_->values);
  }
  mine.call_slots[turn_].subject = call.subject();
  mine.call_slots[turn_].may_counts_differ = declared_in_group_ && declared_in_group_->may_counts_differ();
  compares_replica_ = has_turn(call, number);
  if (compares_replica_) mine.call_slots[turn_].replica = replicas_in_group_->sample();
  const CallSplits* splits = call.splits();
  if (splits != nullptr && splits->sends.size() == memory_.size) {  // not of members on other hosts
    std::int64_t* numbers = memory_.numbers(rank_, turn_);
    std::copy(splits->receives.begin(), splits->receives.end(),
              std::copy(splits->sends.begin(), splits->sends.end(), numbers));
  }
  return arrive();
}

bool GroupMeeting::has_turn(const CollectiveSignature& call, std::uint64_t number) const {
  return number % kCallsPerReplica == 0 && replicas_in_group_ != nullptr && !makes_equal(call.kind()) &&
         call.kind() != CallKind::send_recv;
}

void GroupMeeting::check_usable() const {
  TORCH_CHECK(
      memory_.is_broken.load(std::memory_order_relaxed) == 0,
      "meshtorch: a group cannot be used any more, since a rank gave up in the middle of a collective\n  ",
      describe(), "\n  do: call destroy_process_group() and init_process_group() on all ranks");
}

void GroupMeeting::meet(const CollectiveSignature& call, bool have_all_come, milliseconds timeout) {
  wait_for_all(have_all_come, timeout);
  if (!is_of_one_mind()) disagree(call, timeout);
  if (compares_replica_) {
    std::vector<ReplicaSample> shown;
    for (int r = 0; r < size(); ++r) shown.push_back(call_slot_of(r).replica);
    check_replica(shown, services_.world_ranks, timeout);
  }
  if (call.splits() != nullptr) check_splits(call, timeout);
}

void GroupMeeting::wait_for_all(bool have_all_come, milliseconds timeout) {
  if (!have_all_come) {
    const Blocking blocking;
    const Outcome outcome = sleep_until_all_come(timeout, /*may_give_up=*/true);
    if (outcome != Outcome::complete) {
      MeetingSlot& mine = memory_.slot(rank_);
      const std::string state = describe();
      const std::vector<int> late = late_to_meeting();
      mine.meetings.store(meeting_);  // it has not come after all
      if (outcome != Outcome::peer_failed) give_up(outcome, timeout, state, late);
      mine.calls.fetch_sub(1);  // the call is the others' next one too
      leave();
      hear(failed_among(services_.world_ranks), timeout);
    }
  }
  entered_turn_ = turn_;
  turn_ ^= 1;
}

bool GroupMeeting::is_of_one_mind() const {
  const CallHash& expected = call_slot_of(0).hash;
  CommonSubject subject;
  for (int r = 0; r < size(); ++r) {
    if (call_slot_of(r).hash != expected || !subject.add(call_slot_of(r).subject)) return false;
  }
  return true;
}

void GroupMeeting::agree_on_counts() {
  if (!declared_in_group_) return;
  for (int r = 0; r < size(); ++r) {
    if (call_slot_of(r).may_counts_differ)
      return declared_in_group_->agree_on_counts(call_slot_of(0).hash.short_form() | 1);
  }
}

void GroupMeeting::restart_counts(std::vector<int> world_ranks, const std::string& error) const {
  if (!services_.local_calls) return;
  std::sort(world_ranks.begin(), world_ranks.end());
  CallHash hash;
  hash.add(std::string_view(error));
  restart_ = [local_calls = services_.local_calls, ranks = std::move(world_ranks),
              point = hash.short_form() | 1] { local_calls->restart_counts(ranks, point); };
  if (!defers_restarts_) std::exchange(restart_, nullptr)();
}

std::string GroupMeeting::words(const CollectiveSignature& call) const {
  return declared_ ? call.text() + declared_->text() : call.text();
}

void GroupMeeting::check_splits(const CollectiveSignature& call, milliseconds timeout) {
  const std::string problem = find_mismatch(call, services_.world_ranks, [this](std::size_t rank) {
    return memory_.numbers(static_cast<int>(rank), entered_turn_);
  });
  if (problem.empty()) return;
  gather_inside(timeout);  // peers may still read what this rank shows
  leave();
  mismatch(problem);
}

void GroupMeeting::check_replica(const std::vector<ReplicaSample>& shown, const std::vector<int>& world_ranks,
                                 milliseconds timeout) {
  const std::optional<std::string> name = replicas_in_group_->compare(shown);
  if (!name) return;
  gather_inside(timeout);  // peers may still read what this rank shows
  leave();
  replicas_differ(*name, shown, world_ranks);
}

void GroupMeeting::replicas_differ(const std::string& name, const std::vector<ReplicaSample>& shown,
                                   const std::vector<int>& world_ranks) const {
  const std::string problem =
      "ranks hold different values of a replica\n  " + name + list_of_holders(world_ranks, shown);
  note_failure(problem);
  restart_counts(members(), problem);
  throw DisagreementError(
      {__func__, __FILE__, __LINE__},
      c10::str("meshtorch: ", problem,
               "\n  do: give equal data to all ranks (one seed, one file, broadcast), or see that all of "
               "them make the same updates; agreement level \"calls\" does not compare replicas"));
}

void GroupMeeting::mismatch(const std::string& problem) const {
  note_failure(problem);
  restart_counts(members(), problem);
  TORCH_CHECK_VALUE(false, "meshtorch: ", problem, "\n  do: let each rank expect what the others send to it");
}

void GroupMeeting::next_stage(milliseconds timeout) {
  gather_inside(timeout);
  turn_ ^= 1;
}

void GroupMeeting::sync(milliseconds timeout) { gather_inside(timeout); }

void GroupMeeting::leave() {
  memory_.slot(rank_).is_inside.store(0, std::memory_order_relaxed);
  if (services_.record) services_.record->end(place_in_record_);
  fault_point(FaultPoint::left, world_rank(rank_));
}

void GroupMeeting::gather_inside(milliseconds timeout) {
  const Outcome outcome = gather(timeout, /*may_give_up=*/services_.are_processes);
  if (outcome == Outcome::complete) return;
  memory_.is_broken.store(1);
  ring(memory_);
  if (outcome == Outcome::peer_failed) hear(failed_among(services_.world_ranks), timeout);
  give_up(outcome, timeout, describe(), late_to_meeting());
}

void GroupMeeting::give_up(Outcome outcome, milliseconds timeout, const std::string& state,
                           const std::vector<int>& late) {
  const std::string problem =
      outcome == Outcome::timed_out
          ? c10::str("did not complete in ", timeout.count(), " ms\n  ", state, follow(late))
          : c10::str("cannot complete: ", why_unreachable_.words, "\n  ", state);
  note_failure("a collective " + problem);
  if (services_.local_calls) services_.local_calls->restart_counts();
  leave();
  memory_.slot(rank_).say(ExitReason::gave_up, "a collective " + problem);
  TORCH_CHECK(false, "meshtorch: a collective ", problem, "\n  do: ",
              outcome == Outcome::timed_out
                  ? "see that all ranks of the group call the same collectives in the same order"
                  : "see that no rank of the group leaves before the others");
}

void GroupMeeting::disagree(const CollectiveSignature& call, milliseconds timeout) {
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
  restart_counts(members(), table);
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
    if (const std::string origin = slot.read_origin(); !origin.empty()) text.append(" for ").append(origin);
    if (is_inside && (slot.meetings.load(std::memory_order_relaxed) < latest || was_left(calls)))
      text.append(", behind the others");
    if (slot.exit_reason == ExitReason::error) text.append(", then failed: ").append(slot.read_words());
  }
  return text;
}

}  // namespace meshtorch::internal

// Meetings of ranks that are processes of one host.
#include "agreement/shm_membership.h"

#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#include "agreement/meeting_bell.h"
#include "liveness/watched_store.h"

namespace meshtorch::internal {
namespace {

// Asked until the very end of the process.
struct Memberships {
  std::timed_mutex mutex;
  std::vector<HostMembership*> all;
};
Memberships& memberships() {
  static auto* const known = new Memberships;
  return *known;
}

WhyUnreachable why_unreachable_in_all_groups(const std::vector<int>& world_ranks) {
  const std::scoped_lock lock(memberships().mutex);
  WhyUnreachable found;
  for (const HostMembership* membership : memberships().all) {
    WhyUnreachable one = membership->why_unreachable_of(world_ranks);
    if (one.is_there() && (!found.is_there() || one.cause == WhyUnreachable::Cause::fault))
      found = std::move(one);
  }
  return found;
}

void note_failure_of_process(const std::string& problem) {
  const std::scoped_lock lock(memberships().mutex);
  if (!memberships().all.empty()) memberships().all.front()->note_failure(problem);
}

constexpr HostPeers kPeersInSegments{&tell_wait_in_all_groups, &follow_waits_in_all_groups,
                                     &why_unreachable_in_all_groups, &note_failure_of_process};

std::string name_of_group(const std::vector<int>& world_ranks) {
  return "the group of " + list_ranks(world_ranks);
}

}  // namespace

HostMembership::HostMembership(c10d::Store& store, std::vector<int> world_ranks, int rank,
                               std::size_t stage_bytes)
    : world_ranks_(std::move(world_ranks)), rank_(rank) {
  const int size = static_cast<int>(world_ranks_.size());
  if (rank_ == 0) {
    segment_ = Segment::make(MeetingMemory::bytes_for(size, stage_bytes));
    memory_ = MeetingMemory::make(segment_->data(), size, stage_bytes);
    if (size > 1) set_text(store, "segment", segment_->address());
  } else {
    const AtStore at_store(world_ranks_[0], name_of_group(world_ranks_));
    segment_ = Segment::open(text_at(store, "segment"));
    memory_ = static_cast<MeetingMemory*>(segment_->data());
  }
  MeetingSlot& mine = memory_->slot(rank_);
  mine.process = getpid();
  mine.process_start = process_start(getpid());
  if (size > 1) {
    const auto late = [this] {
      std::vector<int> ranks;
      for (int r = 0; r < static_cast<int>(world_ranks_.size()); ++r) {
        if (memory_->slot(r).process == 0) ranks.push_back(world_ranks_[static_cast<std::size_t>(r)]);
      }
      return ranks;
    };
    const AtStore at_store(late, name_of_group(world_ranks_));
    wait_for_all(store, "attached", size);
  }
  segment_->close_door();
  host_peers = &kPeersInSegments;
  const std::scoped_lock lock(memberships().mutex);
  memberships().all.push_back(this);
}

HostMembership::~HostMembership() {
  {
    const std::scoped_lock lock(memberships().mutex);
    std::erase(memberships().all, this);
  }
  leave();
}

std::unique_ptr<GroupMeeting> HostMembership::meeting(int ranks_on_host, std::vector<int> whole_group) {
  record_ = flight_record_of(world_rank(), ranks_on_host);
  meets_later_ = !whole_group.empty();
  GroupMeeting::PeerServices services{
      world_ranks_,
      ranks_on_host,
      /*are_processes=*/true,
      [this] { return why_unreachable(); },
      record_,
      [record = record_](const std::string& problem) { record->note_failure(problem); },
      [this](const Wait* wait) { tell_wait_in_all_groups(world_rank(), WaitPlace::group, wait); },
      [this](const std::vector<int>& late) { return follow_waits_in_all_groups(world_rank(), late); },
      local_calls_of_process(),
      [](const FailedCall& failed, std::chrono::milliseconds timeout) {
        tell_failure_in_all_groups(failed, timeout);
      },
      std::move(whole_group)};
  return std::make_unique<GroupMeeting>(*memory_, rank_, std::move(services));
}

// A child that a rank has forked holds the same memory, and is no member.
bool HostMembership::is_of_this_process() const { return memory_->slot(rank_).process == getpid(); }

void HostMembership::leave() {
  if (!is_of_this_process()) return;
  MeetingSlot& mine = memory_->slot(rank_);
  if (record_ && mine.has_left == 0) {
    // A rank that leaves since its last collective failed, in whatever group, goes because of another.
    if (const std::string failure = record_->failure(); !failure.empty())
      mine.say(ExitReason::gave_up, failure);
    record_->write_at_end("the rank left");
  }
  mine.has_left = 1;
  ring(*memory_);
}

void HostMembership::say(ExitReason meaning, const std::string& text) {
  if (!is_of_this_process()) return;
  if (meaning == ExitReason::gave_up) note_failure(text);
  memory_->slot(rank_).say(meaning, text);
  ring(*memory_);
}

void HostMembership::note_failure(const std::string& problem) const {
  if (record_) record_->note_failure(problem);
}

// A rank that said why it goes is at fault, then one that died without a word, then one that returned; those
// who gave up knew who it was.
template <class Counts>
WhyUnreachable HostMembership::why_unreachable_among(const Counts& counts) const {
  const auto name = [&](int r) { return c10::str("rank ", world_ranks_[static_cast<std::size_t>(r)]); };
  WhyUnreachable died;
  WhyUnreachable returned;
  WhyUnreachable gave_up;
  for (int r = 0; r < static_cast<int>(memory_->size); ++r) {
    const MeetingSlot& slot = memory_->slot(r);
    if (r == rank_ || !counts(world_ranks_[static_cast<std::size_t>(r)])) continue;
    const ExitReason words = slot.exit_reason;
    if (words == ExitReason::left) return {name(r) + " " + slot.read_words()};
    const bool has_left = slot.has_left != 0;
    if (!has_left && process_start(slot.process) == slot.process_start) continue;
    if (words == ExitReason::gave_up) {
      gave_up = {c10::str(name(r), " gave up, since ", slot.read_words()), WhyUnreachable::Cause::gave_up};
    } else if (has_left) {
      returned = {name(r) + " has already returned"};
    } else {
      died = {c10::str(name(r), " has died (process ", slot.process.load(), ")",
                       words == ExitReason::error ? ", having failed: " + slot.read_words() : "")};
    }
  }
  return died.is_there() ? died : returned.is_there() ? returned : gave_up;
}

WhyUnreachable HostMembership::why_unreachable() const {
  if (is_stopping_) return {c10::str("rank ", world_rank(), " leaves the group")};
  return why_unreachable_among([](int) { return true; });
}

WhyUnreachable HostMembership::why_unreachable_in_a_moment() const {
  if (world_ranks_.size() == 1) return {};
  for (int i = 0; i < 20; ++i) {
    if (WhyUnreachable found = why_unreachable(); found.is_there()) return found;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return {};
}

WhyUnreachable HostMembership::why_unreachable_of(const std::vector<int>& world_ranks) const {
  return why_unreachable_among(
      [&](int rank) { return std::find(world_ranks.begin(), world_ranks.end(), rank) != world_ranks.end(); });
}

void HostMembership::tell_wait(WaitPlace place, const Wait* wait) {
  if (is_of_this_process()) memory_->slot(rank_).tell_wait(place, wait);
}

void HostMembership::settle_failures(const FailedCall& next, std::chrono::milliseconds timeout) const {
  if (meets_later_ || !is_of_this_process() || !next.concerns(world_ranks_)) return;
  wait_until_all_know(
      *memory_, rank_, timeout, [this] { return why_unreachable().is_there(); }, /*thread_rank=*/-1);
}

void HostMembership::tell_failure(const FailedCall& failed) {
  if (meets_later_ || !is_of_this_process() || !failed.concerns(world_ranks_)) return;
  memory_->note_failure(rank_, failed);
  ring(*memory_);
}

std::optional<Whereabouts> HostMembership::whereabouts(int world_rank) const {
  const auto member = std::find(world_ranks_.begin(), world_ranks_.end(), world_rank);
  if (member == world_ranks_.end()) return std::nullopt;
  const MeetingSlot& slot = memory_->slot(static_cast<int>(member - world_ranks_.begin()));
  Whereabouts found;
  found.waits = slot.read_waits();
  found.state = c10::str("its process ", slot.process.load(), " ", process_state(slot.process));
  return found;
}

void say_in_all_groups(ExitReason meaning, const std::string& text) noexcept {
  const std::unique_lock lock(memberships().mutex, std::chrono::seconds(1));
  if (!lock) return;
  for (HostMembership* membership : memberships().all) membership->say(meaning, text);
}

void tell_wait_in_all_groups(int self, WaitPlace place, const Wait* wait) {
  const std::scoped_lock lock(memberships().mutex);
  for (HostMembership* membership : memberships().all) {
    if (self < 0 || membership->world_rank() == self) membership->tell_wait(place, wait);
  }
}

void tell_failure_in_all_groups(const FailedCall& failed, std::chrono::milliseconds timeout) {
  local_calls_of_process()->forget(failed.concerned);
  local_calls_of_process()->restart_counts();
  const std::scoped_lock lock(memberships().mutex);
  const auto& all = memberships().all;
  for (const HostMembership* membership : all) membership->settle_failures(failed, timeout);
  for (HostMembership* membership : all) membership->tell_failure(failed);
  if (std::none_of(all.begin(), all.end(), [](const auto* membership) { return membership->meets_later(); }))
    return;
  CallHash hash;
  hash.add(std::string_view("failed"));
  local_calls_of_process()->add({failed.concerned.begin(), failed.concerned.end()}, hash,
                                [words = failed.words] { return words; });
}

std::string follow_waits_in_all_groups(int self, const std::vector<int>& late) {
  const std::scoped_lock lock(memberships().mutex);
  const auto& all = memberships().all;
  if (self < 0 && !all.empty()) self = all.front()->world_rank();
  return follow_waits(self, late, [&](int rank) -> std::optional<Whereabouts> {
    for (const HostMembership* membership : all) {
      if (auto found = membership->whereabouts(rank)) return found;
    }
    return std::nullopt;
  });
}

std::vector<std::vector<int>> members_by_host(c10d::Store& store, const std::vector<std::int64_t>& ranks,
                                              int rank) {
  set_text(store, c10::str("host of ", rank), host_identity());
  const std::vector<int> world_ranks(ranks.begin(), ranks.end());
  std::vector<std::string> hosts;
  std::vector<std::vector<int>> members;
  for (int r = 0; r < static_cast<int>(ranks.size()); ++r) {
    const AtStore at_store(world_ranks[static_cast<std::size_t>(r)], name_of_group(world_ranks));
    const std::string host = text_at(store, c10::str("host of ", r));
    const auto known = std::find(hosts.begin(), hosts.end(), host);
    if (known == hosts.end()) {
      hosts.push_back(host);
      members.push_back({r});
    } else {
      members[static_cast<std::size_t>(known - hosts.begin())].push_back(r);
    }
  }
  return members;
}

bool ranks_share_host(const c10::intrusive_ptr<c10d::Store>& given, int rank, int size) {
  if (size == 1) return true;
  c10d::PrefixStore store("hosts", given);
  const std::string mine = host_identity();
  if (rank == 0) set_text(store, "first", mine);
  const AtStore at_store(0, "the start of all ranks");
  store.add("others", text_at(store, "first") == mine ? 0 : 1);
  const AtStore for_all(std::vector<int>(), "the start of all ranks");
  wait_for_all(store, "compared", size);
  return store.add("others", 0) == 0;
}

}  // namespace meshtorch::internal

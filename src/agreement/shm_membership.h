// Meetings of ranks that are processes of one host, in a shared segment.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "agreement/meeting.h"
#include "agreement/segment.h"
#include "liveness/flight_record.h"
#include "liveness/waits.h"
#include "meshtorch/api.h"

namespace meshtorch::internal {

// One process's membership in a group that meets in a segment. Its end, or leave(), tells the others.
class HostMembership {
 public:
  // Meets the other members through the store. `rank` is this rank's number in the group.
  HostMembership(c10d::Store& store, std::vector<int> world_ranks, int rank, std::size_t stage_bytes);
  ~HostMembership();
  HostMembership(const HostMembership&) = delete;
  HostMembership& operator=(const HostMembership&) = delete;

  // This rank's part in the meetings, which must not outlive the membership. `whole_group` has the world
  // ranks of those too that are on other hosts; none: there are none.
  std::unique_ptr<GroupMeeting> meeting(int ranks_on_host, std::vector<int> whole_group = {});
  void leave();
  // Tells the members, and wakes those who wait.
  void say(ExitReason meaning, const std::string& text);
  // Ends the waits of this process.
  void stop_waiting() { is_stopping_ = true; }
  // What stands in the way of a wait for the members: for all, or for those with these world ranks.
  WhyUnreachable why_unreachable() const;
  // Looks for a moment: a process that is gone shows so a little after its connections are closed.
  WhyUnreachable why_unreachable_in_a_moment() const;
  WhyUnreachable why_unreachable_of(const std::vector<int>& world_ranks) const;

  int world_rank() const { return world_ranks_[static_cast<std::size_t>(rank_)]; }
  void tell_wait(WaitPlace place, const Wait* wait);
  // Whether the group cannot leave what it is in, since its calls are met for later than they are made.
  bool meets_later() const { return meets_later_; }
  // Blocks until the members know of the failures that this rank knows of, or cannot.
  void settle_failures(const FailedCall& next, std::chrono::milliseconds timeout) const;
  void tell_failure(const FailedCall& failed);
  // None if that rank is no member.
  std::optional<Whereabouts> whereabouts(int world_rank) const;
  void note_failure(const std::string& problem) const;

 private:
  bool is_of_this_process() const;
  template <class Counts>
  WhyUnreachable why_unreachable_among(const Counts& counts) const;

  const std::vector<int> world_ranks_;
  const int rank_;
  std::shared_ptr<Segment> segment_;
  MeetingMemory* memory_ = nullptr;
  std::shared_ptr<FlightRecord> record_;
  bool meets_later_ = false;
  std::atomic<bool> is_stopping_ = false;
};

// The same in all groups in which this process is a member now. Never waits long: it is called when the
// process ends.
void say_in_all_groups(ExitReason meaning, const std::string& text) noexcept;

// What the ranks of this host tell each other in all their groups. `self` is a rank of this process; -1: the
// only one.
void tell_wait_in_all_groups(int self, WaitPlace place, const Wait* wait);
// A call of an operator failed by the data of this process, or of another that told of it: told when all know
// of those before.
void tell_failure_in_all_groups(const FailedCall& failed, std::chrono::milliseconds timeout);
std::string follow_waits_in_all_groups(int self, const std::vector<int>& late);

// The members of the group of these world ranks, by their numbers in it, host by host: those of one can share
// memory. Hosts and their members are in the order of the group. Every member must ask.
std::vector<std::vector<int>> members_by_host(c10d::Store& store, const std::vector<std::int64_t>& ranks,
                                              int rank);

// True if all ranks can share memory. Every rank of the store must ask.
MESHTORCH_FOR_PYTHON bool ranks_share_host(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size);

}  // namespace meshtorch::internal

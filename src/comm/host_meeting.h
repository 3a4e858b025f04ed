// Meetings of ranks that are processes of one host, in a shared segment.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <memory>
#include <vector>

#include "comm/flight_record.h"
#include "comm/meeting.h"
#include "comm/segment.h"
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

  // This rank's part in the meetings, which must not outlive the membership.
  std::unique_ptr<GroupMeeting> meeting(int ranks_on_host);
  void leave();
  // Tells the members, and wakes those who wait.
  void say(LastWords meaning, const std::string& text);
  // Ends the waits of this process.
  void stop_waiting() { is_stopping_ = true; }
  // Why a wait for the members can never end; empty if it can.
  std::string obstacle() const;

 private:
  bool is_of_this_process() const;

  const std::vector<int> world_ranks_;
  const int rank_;
  std::shared_ptr<Segment> segment_;
  MeetingMemory* memory_ = nullptr;
  std::shared_ptr<FlightRecord> record_;
  std::atomic<bool> is_stopping_ = false;
};

// Whether an obstacle is a member that gave up, because of another one, which may be on another host.
bool blames_nobody(const std::string& obstacle);

// The same in all groups in which this process is a member now. Never waits: it is called when the process
// ends.
void say_in_all_groups(LastWords meaning, const std::string& text) noexcept;

// The value of a key as text, when it is there.
std::string text_at(c10d::Store& store, const std::string& key);

// The members of the group, by their numbers in it, that can share memory with this one, itself among them.
// Every member must ask.
std::vector<int> members_on_host(c10d::Store& store, int rank, int size);

// True if all ranks can share memory. Every rank of the store must ask.
MESHTORCH_FOR_PYTHON bool ranks_share_host(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size);

}  // namespace meshtorch::internal

// Meetings of a group whose members are on several hosts: those of each host meet in memory, and the first of
// each host with the first of the others, before anything is sent.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "agreement/meeting.h"

namespace meshtorch::internal {

class HostsMeeting {
 public:
  struct Places {
    std::vector<int> world_ranks;         // of all members, in the order of the group
    std::vector<std::vector<int>> hosts;  // the members of each, by their numbers in the group
    std::size_t host;                     // this one
    std::size_t member;                   // this rank, among those of its host
  };
  // What is known of the other hosts when a connection to them failed with these words.
  using Explain = std::function<std::string(const std::string& backend_words)>;
  // Called before and after a wait for the other hosts.
  using TellWait = std::function<void(bool waits)>;

  // `here` are the meetings of this host, in memory that has stages of `stage_bytes`. `first_ones` connects
  // the first members of the hosts, in the order of those; null on the other members.
  HostsMeeting(GroupMeeting& here, Places places, c10::intrusive_ptr<c10d::Backend> first_ones,
               Explain explain, TellWait tell_wait);
  static std::size_t stage_bytes(std::size_t members);

  // Before this rank comes to the call: what the others must expect of it.
  void bring(const CollectiveSignature& call);
  // As GroupMeeting::meet, of the members of all hosts. Where a host does not answer, the group cannot be
  // used any more.
  void meet(const CollectiveSignature& call, bool have_all_come, std::chrono::milliseconds timeout);

 private:
  enum class Verdict : std::uint64_t { equal, different, splits, failed };
  // What the first member of a host tells the others of it.
  struct Finding {
    Verdict verdict = Verdict::equal;
    std::uint64_t number = 0;  // from which all go on
    std::string text = {};
    std::vector<ReplicaSample> samples = {};  // of all members, where the call compares a replica
  };

  bool is_first() const { return places_.member == 0; }
  // All members of this host get what `find` finds on the first of them.
  Finding found_by_first(const std::function<Finding()>& find, std::chrono::milliseconds timeout);
  // What each host shows, one row each, of rows of equal size.
  std::vector<std::vector<char>> exchange(const std::vector<char>& mine) const;
  std::size_t most_members() const;

  Finding compare_hashes(const CollectiveSignature& call) const;
  // What the members of this host show of a replica, in a row as long as that of any other host.
  std::vector<ReplicaSample> samples_here() const;
  Finding collect_words() const;
  Finding compare_splits(const CollectiveSignature& call) const;

  GroupMeeting& here_;
  const Places places_;
  const c10::intrusive_ptr<c10d::Backend> first_ones_;
  const Explain explain_;
  const TellWait tell_wait_;
};

}  // namespace meshtorch::internal

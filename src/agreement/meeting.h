// One rank's part in the meetings of a group: agreement on each collective, waiting with a time limit, and
// what is told when a rank does not come.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agreement/meeting_memory.h"
#include "liveness/flight_record.h"
#include "signature/call_table.h"
#include "signature/collective_signature.h"
#include "signature/local_call_log.h"

namespace meshtorch::internal {

class GroupMeeting {
 public:
  // Where the ranks are and how they are known to be gone.
  struct PeerServices {
    std::vector<int> world_ranks;  // of the members, in the order of the group
    int ranks_on_host = 1;
    bool are_processes = false;
    // What stands in the way of a wait for the members.
    std::function<WhyUnreachable()> why_unreachable;
    // Where this rank's calls are kept; may be null.
    std::shared_ptr<FlightRecord> record = nullptr;
    // Called with the words of a call that failed; may be empty.
    std::function<void(const std::string& problem)> on_failure = {};
    // Tells those who wait for this rank that it waits itself or gave up, and with null that it goes on; may
    // be empty.
    std::function<void(const Wait* wait)> tell_wait = {};
    // Where those are that are late, and for whom they wait, a line each; may be empty.
    std::function<std::string(const std::vector<int>& late)> follow = {};
    // What this rank calls alike with the others though it sends nothing; may be null.
    std::shared_ptr<LocalCallLog> local_calls = nullptr;
    // Tells all groups of this rank that a call failed that concerns them, when they know of those before;
    // may be empty.
    std::function<void(const FailedCall& failed, std::chrono::milliseconds timeout)> pass_on = {};
    // The world ranks of the group where some of its members meet elsewhere; empty: all are here.
    std::vector<int> whole_group = {};
  };

  GroupMeeting(MeetingMemory& memory, int rank, PeerServices services);

  // What this rank will bring to the next call: filled before enter().
  CallSlot& call_slot() { return memory_.slot(rank_).call_slots[turn_]; }
  char* stage() { return memory_.stage(rank_, turn_); }

  // Blocks until every member has come with an equal call, of the same number in the group. Throws the same
  // error on every member if they differ, or if one sends what another does not expect; throws if a member
  // failed, returned, or did not come in time; where a call of an operator failed on a member by its data,
  // throws that on each of the others, once. Afterwards what the peers brought can be read. Agreement
  // includes what the ranks declared since their last call.
  void enter(const CollectiveSignature& call, std::chrono::milliseconds timeout) {
    if (memory_.failures.load(std::memory_order_relaxed) != failures_known_) attend_to_failures(timeout);
    meet(call, come(call, take_declared(call)), timeout);
    agree_on_counts();
  }
  // Its two halves, for a rank that has better things to do than to sleep: comes to the call, and says
  // whether all the others came while it could afford to watch; and the rest of enter(), from any thread.
  bool come(const CollectiveSignature& call, std::unique_ptr<Declared> declared);
  void meet(const CollectiveSignature& call, bool have_all_come, std::chrono::milliseconds timeout);
  // What the call brings of it, asked in the order of the calls. Messages between two ranks have an order of
  // their own.
  std::unique_ptr<Declared> take_declared(const CollectiveSignature& call) {
    return declared_in_group_ && call.kind() != CallKind::send_recv ? declared_in_group_->take() : nullptr;
  }
  // The parts of meet(), for those who compare more than what lies here: blocks until every member has come;
  // says whether they called the same; and what this rank called, in words.
  void wait_for_all(bool have_all_come, std::chrono::milliseconds timeout);
  bool is_of_one_mind() const;
  std::string words(const CollectiveSignature& call) const;
  // Returns true if the latest call compares a replica, a sample of which every member has brought.
  bool compares_replica() const { return compares_replica_; }
  // Returns the turns of this group through its replicas, for calls that have an order of their own; null if
  // nothing is declared.
  std::unique_ptr<Replicas::OfGroup> replicas() const;
  // Throws that the ranks hold different values of the replica of this name.
  [[noreturn]] void replicas_differ(const std::string& name, const std::vector<ReplicaSample>& shown,
                                    const std::vector<int>& world_ranks) const;
  // Throws if these samples, one from each of these world ranks, differ as they did at the replica's turn
  // before. Blocks until every member is here before it throws.
  void check_replica(const std::vector<ReplicaSample>& shown, const std::vector<int>& world_ranks,
                     std::chrono::milliseconds timeout);
  // Blocks until every member has filled its next stage, which can be read afterwards.
  void next_stage(std::chrono::milliseconds timeout);
  // Blocks until every member is here. Thread ranks read each other's memory until then, so that they never
  // give up.
  void sync(std::chrono::milliseconds timeout);
  // The collective is over for this rank.
  void leave();

  // For what ranks tell each other between their calls: whoever changes something in the memory rings, and
  // wait_until blocks until `is_there`. It throws, with what is `missing` from the member that is late, if
  // that can never be or takes longer than the limit.
  MeetingMemory& memory() const { return memory_; }
  // Where this rank's calls are kept; may be null.
  FlightRecord* record() const { return services_.record.get(); }
  const std::vector<int>& world_ranks() const { return services_.world_ranks; }
  void ring_bell();
  void wait_until(const std::function<bool()>& is_there, std::chrono::milliseconds timeout,
                  const std::function<int()>& late, const std::string& missing);
  // Throws what the ranks called, line by line.
  [[noreturn]] void disagreement(const std::string& table) const;
  // Throws that one sends what another does not expect.
  [[noreturn]] void mismatch(const std::string& problem) const;

  // What a rank brought to the latest call, and its latest stage.
  const CallSlot& call_slot_of(int rank) const { return memory_.slot(rank).call_slots[entered_turn_]; }
  char* stage_of(int rank) const { return memory_.stage(rank, turn_ ^ 1); }
  const char* stage_brought_by(int rank) const { return memory_.stage(rank, entered_turn_); }

  int size() const { return static_cast<int>(services_.world_ranks.size()); }
  int world_rank(int rank) const { return services_.world_ranks[static_cast<std::size_t>(rank)]; }
  std::size_t stage_bytes() const { return memory_.stage_bytes; }
  // "rank 0: is in all_reduce #3; rank 1: has left all_gather #2; …", for messages.
  std::string describe() const;
  // Where these world ranks are and for whom they wait, a line each, as far as that is known.
  std::string follow(const std::vector<int>& late) const {
    return services_.follow ? services_.follow(late) : "";
  }
  // Counts of tensors are made equal after an error that members have got; when the program gets it, if that
  // is later than here: whoever hands it on takes that with it.
  void defer_restarts() { defers_restarts_ = true; }
  std::function<void()> take_restart() { return std::exchange(restart_, nullptr); }
  // Why this rank goes, if it goes now.
  void note_failure(const std::string& problem) const {
    if (services_.on_failure) services_.on_failure(problem);
  }

 private:
  enum class Outcome : std::uint8_t { complete, timed_out, peer_gone, peer_failed };
  // Comes to the next meeting and waits for the others. A rank that gives up has not come.
  Outcome gather(std::chrono::milliseconds timeout, bool may_give_up);
  // Comes to the next meeting; true if all have come, while this rank could afford to watch.
  bool arrive();
  // True if it is over while this rank can afford to watch.
  template <class Condition>
  bool watch(const Condition& is_over);
  Outcome sleep_until_all_come(std::chrono::milliseconds timeout, bool may_give_up);
  // Gives up, if at all, by `withdraw`, which is false if it has come to be over before.
  // `wait` says who is waited for.
  Outcome sleep(const std::function<bool()>& is_over, std::chrono::milliseconds timeout,
                const std::function<bool()>& withdraw, const std::function<Wait()>& wait);
  // Before a call: throws what failed on others and this rank has not heard of; where the others have not
  // heard of what it knows, blocks until they have, so that nobody comes to a call that others have left.
  void attend_to_failures(std::chrono::milliseconds timeout);
  // The first of these world ranks, by its number in the group, that knows of a failure that this rank has
  // not heard of; -1: none.
  int failed_among(const std::vector<int>& world_ranks) const;
  // Throws what failed, as the member knows it, and tells all groups of this rank.
  [[noreturn]] void hear(int member, std::chrono::milliseconds timeout);
  void check_usable() const;
  void tell_wait(const Wait* wait);
  // World ranks that have not come to the latest meeting.
  std::vector<int> late_to_meeting() const;
  Wait wait_in_meeting() const;
  bool is_over(std::uint64_t meeting) const;
  // False if the meeting was completed before this rank could take its coming back.
  bool withdraw(std::uint64_t meeting);
  // In the middle of a collective.
  void gather_inside(std::chrono::milliseconds timeout);
  // Says who is late, once in a wait that is longer than waits should be.
  void warn_of_wait(std::chrono::milliseconds waited, const std::vector<int>& late) const;
  // `late` are the world ranks that were waited for.
  [[noreturn]] void give_up(Outcome outcome, std::chrono::milliseconds timeout, const std::string& state,
                            const std::vector<int>& late);
  // All ranks are here, and not all of one mind: they tell each other what they called, and throw.
  [[noreturn]] void disagree(const CollectiveSignature& call, std::chrono::milliseconds timeout);
  void check_splits(const CollectiveSignature& call, std::chrono::milliseconds timeout);
  // All members have come to one point of their programs.
  void agree_on_counts();
  // These world ranks, in any order, get one error, in these words.
  void restart_counts(std::vector<int> world_ranks, const std::string& error) const;
  // The world ranks of the group, also of those that meet elsewhere.
  const std::vector<int>& members() const;
  // Whether the call of this number compares a replica.
  bool has_turn(const CollectiveSignature& call, std::uint64_t number) const;

  static constexpr std::uint64_t kCallsPerReplica = 8;
  // Watching pays up to what sleeping and being woken cost.
  static constexpr std::chrono::nanoseconds kLongestWatch = std::chrono::microseconds(200);

  MeetingMemory& memory_;
  const int rank_;
  const PeerServices services_;
  const bool may_watch_;
  std::uint64_t meeting_ = 0;  // the latest that this rank has come to
  int turn_ = 0;
  int entered_turn_ = 0;
  const std::uint64_t number_in_record_;
  std::size_t place_in_record_ = 0;
  std::chrono::nanoseconds patience_;
  std::unique_ptr<LocalCallLog::OfGroup> declared_in_group_;  // null if nothing is declared
  std::unique_ptr<Declared> declared_;                        // before the latest call
  std::unique_ptr<Replicas::OfGroup> replicas_in_group_;      // null if nothing is declared
  bool compares_replica_ = false;                             // in the latest call
  bool defers_restarts_ = false;
  mutable std::function<void()> restart_;  // that was deferred
  WhyUnreachable why_unreachable_;
  std::uint64_t failures_known_ = 0;  // the memory's, when all members knew of all
  bool has_told_ = false;             // of a wait
};

// Blocks until every member of a group knows of the failures that this one knows of: nobody is to hear of two
// as of one. Ends also at the limit, or when `is_hindered` says that it can never be. `thread_rank` is this
// rank in a world of threads, else -1.
void wait_until_all_know(MeetingMemory& memory, int rank, std::chrono::milliseconds timeout,
                         const std::function<bool()>& is_hindered, int thread_rank);

}  // namespace meshtorch::internal

// The memory in which the ranks of a group meet: on the heap for threads, in a shared segment for processes.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "liveness/failed_call.h"
#include "liveness/waits.h"
#include "signature/call_hash.h"
#include "signature/call_subject.h"
#include "signature/replicas.h"

namespace meshtorch::internal {

// What one rank brings to a collective. There are two, used in turns: a rank may already prepare its next
// call while a peer still reads the last.
struct CallSlot {
  CallHash hash;
  std::uint64_t subject = 0;       // of the call
  bool may_counts_differ = false;  // of tensors, as far as this rank knows
  const void* shown = nullptr;     // the rank's own memory, where peers can read it; else its stage holds it
  std::uint64_t bytes = 0;         // in its stage, all rounds together
  ReplicaSample replica;
};

// Whether ranks may call for the same tensor: those that know the subject of their call have one.
class CommonSubject {
 public:
  // Returns false if it is another one.
  bool add(std::uint64_t subject) {
    if (subject == kUnknownOrigin) return true;
    if (common_ == kUnknownOrigin) common_ = subject;
    return common_ == subject;
  }
  // kUnknownOrigin if no rank knows it.
  std::uint64_t get() const { return common_; }

 private:
  std::uint64_t common_ = kUnknownOrigin;
};

// What one rank posts ahead of time, and how far it has come with what the others posted: numbers of calls of
// one lane; see posted_collectives.h. Every second call of a lane has the same place.
constexpr std::size_t kNoticeLanes = 3;
constexpr std::size_t kNoticePlaces = 2;
struct alignas(64) Notice {
  std::atomic<std::uint64_t> number = 0;  // of the call that is posted
  std::atomic<std::uint64_t> opened = 0;  // the memory of all others was opened
  std::atomic<std::uint64_t> taken = 0;   // the parts of all others were taken
  std::atomic<std::uint64_t> has_words = 0;
  CallHash hash;
  std::uint64_t subject = 0;  // of the call
  ReplicaSample replica;
  char address[96];  // of the segment that holds the part
  char words[2048];  // the call, when ranks disagree
};

struct alignas(64) MeetingSlot {
  CallSlot call_slots[2];
  Notice notices[kNoticeLanes][kNoticePlaces];
  std::atomic<std::uint64_t> calls = 0;  // collectives entered so far
  std::atomic<std::uint32_t> kind = 0;   // the latest of them
  std::atomic<std::uint32_t> is_inside = 0;
  std::atomic<std::uint32_t> has_left = 0;  // the group, for good
  std::atomic<ExitReason> exit_reason = ExitReason::none;
  std::atomic<std::uint64_t> meetings = 0;  // that the rank has come to
  std::atomic<std::int32_t> process = 0;
  std::atomic<std::uint64_t> process_start = 0;
  std::atomic<std::uint64_t> origin[6] = {};  // what the latest call is for, as characters
  char words[4096];                           // what the rank called when ranks disagreed, or why it exits
  std::array<WaitNote, kWaitPlaces> waits;
  // Calls that failed on this rank, or on another that told of it: those of all members are equal when all
  // know.
  std::atomic<std::uint64_t> failures = 0;
  FailureNote failure;  // the latest

  // Cut to what fits. Peers may read while it is written: half of one text and half of another, then.
  void write_origin(std::string_view name);
  std::string read_origin() const;
  void write_words(const std::string& text);
  std::string read_words() const;
  // Null: it goes on.
  void tell_wait(WaitPlace place, const Wait* wait);
  std::vector<Wait> read_waits() const;
  // The text comes before its meaning. A rank that gave up goes because of another: that stays said.
  void say(ExitReason meaning, const std::string& text);
};

// Followed by the slots, two lists of numbers and two stages for each rank.
struct MeetingMemory {
  // Meetings held so far << 16 | ranks that have come to the next.
  alignas(64) std::atomic<std::uint64_t> gathering = 0;
  alignas(64) std::atomic<std::uint32_t> bell = 0;  // changes when sleepers have to look again
  std::atomic<std::uint32_t> sleepers = 0;
  std::atomic<std::uint32_t> is_broken = 0;  // a rank gave up in the middle of a collective
  std::atomic<std::uint64_t> failures = 0;   // changes with those of a slot
  std::uint32_t size = 0;
  std::uint64_t stage_bytes = 0;
  std::uint64_t secret = 0;

  static std::size_t bytes_for(int size, std::size_t stage_bytes);
  // Makes one in room that is aligned to 64 bytes and zero.
  static MeetingMemory* make(void* room, int size, std::size_t stage_bytes);

  MeetingSlot& slot(int rank);
  // The failed call is known to this rank, and everything before it over: it leaves what the others may be
  // in.
  void note_failure(int rank, const FailedCall& failed);
  // The first member that has not heard of all failures that this one knows of; -1: none.
  int behind(int rank);
  // For 2 * size numbers that a rank shows.
  std::int64_t* numbers(int rank, int turn);
  char* stage(int rank, int turn);

 private:
  char* after_header() { return reinterpret_cast<char*>(this + 1); }
};

}  // namespace meshtorch::internal

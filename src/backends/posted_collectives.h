// Collectives between ranks that share memory, in two halves: a rank posts its part and goes on; it takes
// the parts of the others when it needs the result. Nobody waits for a rank that is slower before that.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agreement/meeting.h"
#include "agreement/segment.h"

namespace meshtorch::internal {

// The order of calls counts within a lane, not between lanes.
enum class Lane : std::uint8_t { gather, reduce, message };

// One rank's part in what the ranks of a group post. Used by one thread at a time.
class PostedCollectives {
 public:
  using Take = std::function<void(std::span<const char* const> shown)>;
  // A call whose first half is done.
  class Posting {
   public:
    // `board` is part of what `keeps_alive` refers to.
    Posting(PostedCollectives& board, std::shared_ptr<void> keeps_alive, Lane lane, std::uint64_t number);
    // Without finish(), the others' parts are passed over.
    ~Posting();
    Posting(const Posting&) = delete;
    Posting& operator=(const Posting&) = delete;

    // Blocks until every rank has posted an equal call, then takes their parts. Once; further calls do
    // nothing. Throws the same error on every member if their calls differ; throws if one failed, returned or
    // did not post in time.
    void finish();

   private:
    friend class PostedCollectives;
    const std::shared_ptr<void> keeps_alive_;
    PostedCollectives& board_;
    const Lane lane_;
    const std::uint64_t number_;
    bool is_over_ = false;
    bool shows_replica_ = false;
    std::size_t place_in_record_ = 0;
    Take take_;
    std::function<std::string()> words_;
  };

  struct Part {
    // How many bytes each rank shows, the same on all.
    std::size_t bytes;
    // Writes this rank's.
    std::function<void(char* room)> fill;
    // Called by finish() with what each rank shows. What it needs stays alive in it.
    Take take;
    // The call in words, for when ranks disagree.
    std::function<std::string()> words;
  };

  PostedCollectives(GroupMeeting& meeting, int rank)
      : meeting_(meeting), rank_(rank), replicas_(meeting.replicas()) {}

  // Blocks only while a peer has not taken what was posted two calls before, and where more memory is needed
  // than any call before it needed. A call of its own that is still under way in that place is finished
  // first. The posting, which may outlive the group, holds `keeps_alive`.
  std::shared_ptr<Posting> post(Lane lane, const CollectiveSignature& call, Part part,
                                std::chrono::milliseconds timeout, std::shared_ptr<void> keeps_alive);

 private:
  // Where the parts of every second call lie.
  struct Place {
    std::shared_ptr<Segment> mine;
    std::size_t room = 0;
    std::vector<std::shared_ptr<Segment>> rooms;  // of all ranks
    std::weak_ptr<Posting> posting;
  };
  struct LaneState {
    std::uint64_t next = 1;
    std::optional<std::uint64_t> series;  // in the flight record
    std::array<Place, kNoticePlaces> places;
  };

  LaneState& state(Lane lane) { return lanes_[static_cast<std::size_t>(lane)]; }
  Notice& notice(int rank, Lane lane, std::uint64_t number) const;
  // Waits until `is_so` of what every other rank shows in the place of that call.
  template <class Condition>
  void wait_for_peers(Lane lane, std::uint64_t number, const char* what, const Condition& is_so);
  void make_room(Place& place, Notice& mine, std::size_t bytes);
  void map_peer_segments(Lane lane, std::uint64_t number, const std::function<std::string()>& words);
  void agree(Lane lane, std::uint64_t number, const std::function<std::string()>& words);
  // Throws if a replica that the ranks show with their reductions differs, as it did at its turn before.
  void compare_replicas(Lane lane, std::uint64_t number);
  void mark_taken(Lane lane, std::uint64_t number);
  // Keeps a call that was posted; gives its place in the record.
  std::size_t keep(Lane lane, std::uint64_t number, const CollectiveSignature& call);

  GroupMeeting& meeting_;
  const int rank_;
  const std::unique_ptr<Replicas::OfGroup> replicas_;  // null if nothing is declared
  std::chrono::milliseconds timeout_{};
  std::array<LaneState, kNoticeLanes> lanes_;
};

}  // namespace meshtorch::internal

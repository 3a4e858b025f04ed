// What ranks that share memory do with it in a collective: each reads its peers' bytes and writes its own
// results. Threads read each other's tensors in place; processes, and threads for what is small, show copies
// in stages.
#pragma once

#include <c10/core/ScalarType.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>

#include "agreement/meeting.h"
#include "backends/posted_collectives.h"
#include "kernels/runs.h"
#include "meshtorch/placement.h"

namespace meshtorch::internal {

// The elements that a reduction combines.
struct Reducing {
  c10::ScalarType type;
  ReduceOp op;
};

class MemoryExchange {
 public:
  MemoryExchange(std::unique_ptr<GroupMeeting> meeting, int rank, bool reads_peers);

  GroupMeeting& meeting() { return *meeting_; }
  PostedCollectives& board() { return board_; }
  int rank() const { return rank_; }
  int size() const { return meeting_->size(); }

  void barrier(const CollectiveSignature& call, std::chrono::milliseconds timeout);
  // Whether all ranks say yes.
  bool all_say(const CollectiveSignature& call, bool mine, std::chrono::milliseconds timeout);

  // Every rank shows `mine` whole; the stream of rank r goes to into[r] as far as that reaches.
  void gather(const CollectiveSignature& call, RunList mine, std::span<const RunList> into,
              std::chrono::milliseconds timeout);
  // parts[r] goes to rank r, and what comes from it into into[r]. Both have the same bytes, which the ranks
  // know from the call.
  void exchange(const CollectiveSignature& call, std::span<const RunList> parts,
                std::span<const RunList> into, std::chrono::milliseconds timeout);

  // out = the reduction of all ranks' `mine`; both have the same bytes on all ranks, and may be the same.
  void all_reduce(const CollectiveSignature& call, RunList mine, RunList out, Reducing reducing,
                  std::chrono::milliseconds timeout);
  // out = the reduction of all ranks' parts[rank]; part r has the same bytes on all ranks.
  void reduce_scatter(const CollectiveSignature& call, std::span<const RunList> parts, RunList out,
                      Reducing reducing, std::chrono::milliseconds timeout);

 private:
  struct Shown;
  // Meets the peers, who may read `shown` in place if it is given, else this rank's stage.
  void enter(const CollectiveSignature& call, const Shown* shown, std::size_t bytes,
             std::chrono::milliseconds timeout);
  // The same after filling the stage, where the bytes of `shown` have to go there.
  void show(const CollectiveSignature& call, const Shown& shown, std::chrono::milliseconds timeout);
  const Shown* shown_by(int rank) const;
  bool any_shown() const;
  // The bytes that the rank with most of them shows in its stage, all rounds together.
  std::size_t longest_staged() const;
  // Of a stage that has a share for each rank: that of every other rank gets its part from `begin` on.
  std::size_t share_bytes() const;
  void fill_shares(std::span<const RunList> parts, std::size_t begin);
  void all_reduce_in_place(RunList out, std::size_t bytes, Reducing reducing,
                           std::chrono::milliseconds timeout);
  void all_reduce_of_two(const CollectiveSignature& call, RunList mine, RunList out, Reducing reducing,
                         std::chrono::milliseconds timeout);
  void all_reduce_staged(RunList mine, RunList out, std::size_t bytes, Reducing reducing,
                         std::chrono::milliseconds timeout);
  void reduce_staged(std::size_t offset, std::size_t bytes, RunCursor out, Reducing reducing);
  void reduce_shares(RunCursor own, std::size_t bytes, RunCursor out, Reducing reducing);

  std::unique_ptr<GroupMeeting> meeting_;
  PostedCollectives board_;
  const int rank_;
  const bool reads_peers_;
};

}  // namespace meshtorch::internal

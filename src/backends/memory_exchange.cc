// Collectives on plain memory that the ranks share.
#include "backends/memory_exchange.h"

#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "core/shard.h"
#include "kernels/reduce.h"

namespace meshtorch::internal {
namespace {

using std::chrono::milliseconds;

// Up to here, reducing everything on every rank is faster than meeting once more to exchange slices.
constexpr std::size_t kWholeBytes = std::size_t{16} << 10;
// Bytes for each rank of a stage begin and end at a multiple of this, a multiple of every element's size.
constexpr std::size_t kAlignment = 64;

using Terms = c10::SmallVector<const char*, 16>;

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

// The bytes that rank `rank` of `size` reduces of that many, whole elements of up to 64 bytes.
Range slice_of(std::size_t bytes, int size, int rank) {
  const auto lines = static_cast<std::int64_t>((bytes + kAlignment - 1) / kAlignment);
  const Range range = chunk(lines, size, rank);
  const auto limit = static_cast<std::int64_t>(bytes);
  const std::int64_t begin =
      std::min<std::int64_t>(range.begin * static_cast<std::int64_t>(kAlignment), limit);
  const std::int64_t end = std::min<std::int64_t>(range.end() * static_cast<std::int64_t>(kAlignment), limit);
  return {begin, end - begin};
}

// Runs that are shorter are brought together before they are reduced.
constexpr std::size_t kLongRun = 512;
constexpr std::size_t kBlockBytes = std::size_t{8} << 10;

std::size_t longest_of(std::span<const RunList> parts) {
  std::size_t longest = 0;
  for (const RunList part : parts) longest = std::max(longest, bytes_of(part));
  return longest;
}

// out = the reduction of streams.
void reduce_streams(std::span<RunCursor> terms, RunCursor out, std::size_t bytes, Reducing reducing) {
  std::vector<const char*> here(terms.size());  // g++ 12 mistrusts a SmallVector that is resized
  std::vector<char> blocks;
  while (bytes > 0) {
    std::size_t part = std::min(bytes, out.together());
    for (std::size_t i = 0; i < terms.size(); ++i) {
      part = std::min(part, terms[i].together());
      here[i] = terms[i].data();
    }
    if (part == bytes || part >= kLongRun) {
      reduce_bytes(out.data(), here, part, reducing.type, reducing.op);
      for (RunCursor& term : terms) term.advance(part);
      out.advance(part);
    } else {
      part = std::min(bytes, kBlockBytes);
      blocks.resize(terms.size() * kBlockBytes);
      for (std::size_t i = 0; i < terms.size(); ++i) {
        const Runs block{blocks.data() + i * kBlockBytes, part};
        RunCursor to({&block, 1});
        move_stream(terms[i], to, part);
        here[i] = block.data;
      }
      const Runs block{blocks.data(), part};
      RunCursor from({&block, 1});
      reduce_bytes(block.data, here, part, reducing.type, reducing.op);
      move_stream(from, out, part);
    }
    bytes -= part;
  }
}

}  // namespace

// What a rank lets its peers read in place while they are inside.
struct MemoryExchange::Shown {
  std::span<const RunList> parts;  // for each rank, or one for all
  RunList out;                     // where its results go
};

MemoryExchange::MemoryExchange(std::unique_ptr<GroupMeeting> meeting, int rank, bool reads_peers)
    : meeting_(std::move(meeting)), board_(*meeting_, rank), rank_(rank), reads_peers_(reads_peers) {}

void MemoryExchange::enter(const CollectiveSignature& call, const Shown* shown, std::size_t bytes,
                           milliseconds timeout) {
  CallSlot& mine = meeting_->call_slot();
  mine.bytes = bytes;
  mine.shown = shown;
  meeting_->enter(call, timeout);
}

void MemoryExchange::show(const CollectiveSignature& call, const Shown& shown, milliseconds timeout) {
  const std::size_t bytes = bytes_of(shown.parts[0]);
  const std::size_t stage = meeting_->stage_bytes();
  if (reads_peers_ && bytes > stage) return enter(call, &shown, bytes, timeout);
  copy_stream(RunCursor(shown.parts[0]), meeting_->stage(), std::min(bytes, stage));
  enter(call, nullptr, bytes, timeout);
}

const MemoryExchange::Shown* MemoryExchange::shown_by(int rank) const {
  return static_cast<const Shown*>(meeting_->call_slot_of(rank).shown);
}

bool MemoryExchange::any_shown() const {
  for (int r = 0; r < meeting_->size(); ++r) {
    if (shown_by(r) != nullptr) return true;
  }
  return false;
}

void MemoryExchange::barrier(const CollectiveSignature& call, milliseconds timeout) {
  enter(call, nullptr, 0, timeout);
  meeting_->leave();
}

bool MemoryExchange::all_say(const CollectiveSignature& call, bool mine, milliseconds timeout) {
  enter(call, nullptr, mine ? 1 : 0, timeout);
  bool all = true;
  for (int r = 0; r < size(); ++r) all = all && meeting_->call_slot_of(r).bytes == 1;
  meeting_->leave();
  return all;
}

void MemoryExchange::gather(const CollectiveSignature& call, RunList mine, std::span<const RunList> into,
                            milliseconds timeout) {
  const Shown shown{{&mine, 1}, {}};
  show(call, shown, timeout);
  const std::size_t stage = meeting_->stage_bytes();
  copy_stream(RunCursor(mine), RunCursor(into[index(rank_)]), bytes_of(into[index(rank_)]));
  const std::size_t longest = longest_staged();
  const std::size_t my_bytes = bytes_of(mine);
  for (std::size_t begin = 0;; begin += stage) {
    for (int step = 1; step < size(); ++step) {
      const int r = (rank_ + step) % size();  // not all from one rank at a time
      const RunList target = into[index(r)];
      const std::size_t bytes = bytes_of(target);
      if (const Shown* theirs = shown_by(r)) {
        if (begin == 0) copy_stream(RunCursor(theirs->parts[0]), RunCursor(target), bytes);
      } else if (begin < bytes) {
        copy_stream(meeting_->stage_of(r), RunCursor(target, begin), std::min(stage, bytes - begin));
      }
    }
    const std::size_t next = begin + stage;
    if (next >= longest) break;
    if (shown_by(rank_) == nullptr && next < my_bytes) {
      copy_stream(RunCursor(mine, next), meeting_->stage(), std::min(stage, my_bytes - next));
    }
    meeting_->next_stage(timeout);
  }
  if (any_shown()) meeting_->sync(timeout);
  meeting_->leave();
}

std::size_t MemoryExchange::longest_staged() const {
  std::size_t longest = 0;
  for (int r = 0; r < size(); ++r) {
    if (shown_by(r) == nullptr) longest = std::max<std::size_t>(longest, meeting_->call_slot_of(r).bytes);
  }
  return longest;
}

std::size_t MemoryExchange::share_bytes() const {
  return meeting_->stage_bytes() / index(size()) / kAlignment * kAlignment;
}

void MemoryExchange::fill_shares(std::span<const RunList> parts, std::size_t begin) {
  for (int r = 0; r < size(); ++r) {
    const std::size_t all = bytes_of(parts[index(r)]);
    if (r == rank_ || begin >= all) continue;
    copy_stream(RunCursor(parts[index(r)], begin), meeting_->stage() + index(r) * share_bytes(),
                std::min(share_bytes(), all - begin));
  }
}

void MemoryExchange::exchange(const CollectiveSignature& call, std::span<const RunList> parts,
                              std::span<const RunList> into, milliseconds timeout) {
  const std::size_t share = share_bytes();
  const std::size_t my_longest = longest_of(parts);
  const Shown shown{parts, {}};
  const bool is_staged = !reads_peers_ || my_longest <= share;
  if (is_staged) fill_shares(parts, 0);
  enter(call, is_staged ? nullptr : &shown, my_longest, timeout);
  copy_stream(RunCursor(parts[index(rank_)]), RunCursor(into[index(rank_)]), bytes_of(into[index(rank_)]));
  const std::size_t longest = longest_staged();
  for (std::size_t begin = 0;; begin += share) {
    for (int step = 1; step < size(); ++step) {
      const int r = (rank_ + step) % size();
      const RunList target = into[index(r)];
      const std::size_t bytes = bytes_of(target);
      if (const Shown* theirs = shown_by(r)) {
        if (begin == 0) copy_stream(RunCursor(theirs->parts[index(rank_)]), RunCursor(target), bytes);
      } else if (begin < bytes) {
        copy_stream(meeting_->stage_of(r) + index(rank_) * share, RunCursor(target, begin),
                    std::min(share, bytes - begin));
      }
    }
    if (begin + share >= longest) break;
    if (is_staged) fill_shares(parts, begin + share);
    meeting_->next_stage(timeout);
  }
  if (any_shown()) meeting_->sync(timeout);
  meeting_->leave();
}

void MemoryExchange::all_reduce(const CollectiveSignature& call, RunList mine, RunList out, Reducing reducing,
                                milliseconds timeout) {
  const std::size_t bytes = bytes_of(mine);
  const bool is_staged = !reads_peers_ || bytes <= meeting_->stage_bytes();
  if (size() == 2 && is_staged && bytes > kWholeBytes)
    return all_reduce_of_two(call, mine, out, reducing, timeout);
  const Shown shown{{&mine, 1}, out};
  show(call, shown, timeout);
  if (shown_by(rank_) != nullptr) {
    all_reduce_in_place(out, bytes, reducing, timeout);
  } else {
    all_reduce_staged(mine, out, bytes, reducing, timeout);
  }
  meeting_->leave();
}

// Each rank reduces a slice of all inputs into its result, and when all have, copies the other slices.
void MemoryExchange::all_reduce_in_place(RunList out, std::size_t bytes, Reducing reducing,
                                         milliseconds timeout) {
  const auto begin_of = [&](int r) { return static_cast<std::size_t>(slice_of(bytes, size(), r).begin); };
  const auto bytes_in = [&](int r) { return static_cast<std::size_t>(slice_of(bytes, size(), r).size); };
  c10::SmallVector<RunCursor, 8> terms;
  for (int r = 0; r < size(); ++r) terms.emplace_back(shown_by(r)->parts[0], begin_of(rank_));
  reduce_streams(terms, RunCursor(out, begin_of(rank_)), bytes_in(rank_), reducing);
  meeting_->sync(timeout);
  for (int step = 1; step < size(); ++step) {
    const int r = (rank_ + step) % size();
    copy_stream(RunCursor(shown_by(r)->out, begin_of(r)), RunCursor(out, begin_of(r)), bytes_in(r));
  }
  meeting_->sync(timeout);
}

// Two ranks halve each block: a rank shows the other what that reduces, and the result of its own half, which
// went through no stage before. (Of more ranks, each reads its slice of all from the stages: where they share
// cores, a slice that comes from afar while the others wait costs more than it saves.)
void MemoryExchange::all_reduce_of_two(const CollectiveSignature& call, RunList mine, RunList out,
                                       Reducing reducing, milliseconds timeout) {
  const int peer = 1 - rank_;
  const std::size_t bytes = bytes_of(mine);
  const std::size_t share = share_bytes();
  struct Half {
    std::size_t begin, bytes;
  };
  const auto half = [&](std::size_t begin, int r) -> Half {
    const Range range = slice_of(std::min(2 * share, bytes - begin), 2, r);
    return {begin + static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.size)};
  };
  const auto show_to_peer = [&](std::size_t begin) {
    const Half theirs = half(begin, peer);
    copy_stream(RunCursor(mine, theirs.begin), meeting_->stage() + index(peer) * share, theirs.bytes);
  };
  show_to_peer(0);
  enter(call, nullptr, bytes, timeout);
  for (std::size_t begin = 0;; begin += 2 * share) {
    const Half own = half(begin, rank_);
    const Half theirs = half(begin, peer);
    reduce_shares(RunCursor(mine, own.begin), own.bytes, RunCursor(out, own.begin), reducing);
    copy_stream(RunCursor(out, own.begin), meeting_->stage_of(rank_) + index(rank_) * share, own.bytes);
    meeting_->sync(timeout);
    copy_stream(meeting_->stage_of(peer) + index(peer) * share, RunCursor(out, theirs.begin), theirs.bytes);
    if (begin + 2 * share >= bytes) break;
    show_to_peer(begin + 2 * share);
    meeting_->next_stage(timeout);
  }
  meeting_->leave();
}

void MemoryExchange::all_reduce_staged(RunList mine, RunList out, std::size_t bytes, Reducing reducing,
                                       milliseconds timeout) {
  const std::size_t stage = meeting_->stage_bytes();
  for (std::size_t begin = 0;; begin += stage) {
    const std::size_t part = std::min(stage, bytes - begin);
    if (part <= kWholeBytes) {
      reduce_staged(0, part, RunCursor(out, begin), reducing);
    } else {
      const Range own = slice_of(part, size(), rank_);
      const auto first = static_cast<std::size_t>(own.begin);
      const Runs slice{meeting_->stage_of(rank_) + first, static_cast<std::size_t>(own.size)};
      reduce_staged(first, slice.run, RunCursor({&slice, 1}), reducing);
      meeting_->sync(timeout);
      for (int r = 0; r < size(); ++r) {
        const Range done = slice_of(part, size(), r);
        const auto from = static_cast<std::size_t>(done.begin);
        copy_stream(meeting_->stage_of(r) + from, RunCursor(out, begin + from),
                    static_cast<std::size_t>(done.size));
      }
    }
    const std::size_t next = begin + stage;
    if (next >= bytes) return;
    copy_stream(RunCursor(mine, next), meeting_->stage(), std::min(stage, bytes - next));
    meeting_->next_stage(timeout);
  }
}

// The reduction of what lies at one place of all stages.
void MemoryExchange::reduce_staged(std::size_t offset, std::size_t bytes, RunCursor out, Reducing reducing) {
  if (out.together() >= bytes) {
    Terms terms;
    for (int r = 0; r < size(); ++r) terms.push_back(meeting_->stage_of(r) + offset);
    if (bytes > 0) reduce_bytes(out.data(), terms, bytes, reducing.type, reducing.op);
    return;
  }
  c10::SmallVector<Runs, 16> places;
  for (int r = 0; r < size(); ++r) places.push_back({meeting_->stage_of(r) + offset, bytes});
  c10::SmallVector<RunCursor, 8> terms;
  for (const Runs& place : places) terms.emplace_back(RunList(&place, 1));
  reduce_streams(terms, out, bytes, reducing);
}

// The reduction of this rank's shares of the others' stages and of its own part, which goes through no stage.
void MemoryExchange::reduce_shares(RunCursor own, std::size_t bytes, RunCursor out, Reducing reducing) {
  c10::SmallVector<Runs, 16> places;
  for (int r = 0; r < size(); ++r)
    places.push_back({meeting_->stage_of(r) + index(rank_) * share_bytes(), bytes});
  c10::SmallVector<RunCursor, 8> terms;
  for (int r = 0; r < size(); ++r) terms.push_back(r == rank_ ? own : RunCursor({&places[index(r)], 1}));
  reduce_streams(terms, out, bytes, reducing);
}

void MemoryExchange::reduce_scatter(const CollectiveSignature& call, std::span<const RunList> parts,
                                    RunList out, Reducing reducing, milliseconds timeout) {
  const std::size_t longest = longest_of(parts);
  const std::size_t mine = bytes_of(out);
  const std::size_t share = share_bytes();
  const Shown shown{parts, {}};
  const bool is_staged = !reads_peers_ || longest <= share;
  if (is_staged) fill_shares(parts, 0);
  enter(call, is_staged ? nullptr : &shown, 0, timeout);
  if (!is_staged) {
    c10::SmallVector<RunCursor, 8> terms;
    for (int r = 0; r < size(); ++r) terms.emplace_back(shown_by(r)->parts[index(rank_)]);
    reduce_streams(terms, RunCursor(out), mine, reducing);
    meeting_->sync(timeout);
  }
  for (std::size_t begin = 0; is_staged; begin += share) {
    if (begin < mine) {
      reduce_shares(RunCursor(parts[index(rank_)], begin), std::min(share, mine - begin),
                    RunCursor(out, begin), reducing);
    }
    if (begin + share >= longest) break;
    fill_shares(parts, begin + share);
    meeting_->next_stage(timeout);
  }
  meeting_->leave();
}

}  // namespace meshtorch::internal

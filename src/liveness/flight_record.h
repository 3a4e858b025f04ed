// The last collectives of one rank, in a ring: a few stores for each call, to be read when something went
// wrong.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "signature/collective_signature.h"

namespace meshtorch::internal {

class FlightRecord {
 public:
  static constexpr std::size_t kCalls = 2000;

  FlightRecord(int rank, int world_size);

  int rank() const { return rank_; }
  // The calls of a group that have numbers of their own: those of a lane, where ranks post them ahead of time
  // (posted_collectives.h), or, without one, those at which they meet.
  struct Series {
    std::vector<int> world_ranks;
    std::string lane = {};
    bool operator==(const Series&) const = default;
  };
  // Its number in this record; asked once for each.
  std::uint64_t number_of(const Series& series) {
    const std::scoped_lock lock(mutex_);
    const auto found = std::find(series_.begin(), series_.end(), series);
    if (found != series_.end()) return static_cast<std::uint64_t>(found - series_.begin());
    series_.push_back(series);
    return series_.size() - 1;
  }

  // A call of a series begins; gives its place, for end(). Any thread of the rank may call, and neither waits
  // nor allocates. What is read meanwhile may be half of one call and half of another.
  std::size_t begin(std::uint64_t series, std::uint64_t number, const CollectiveSignature& call) {
    const std::size_t index = next_place();
    Place& place = places_[index];
    write(place.number, number);
    write(place.what, series << 32 | static_cast<std::uint64_t>(call.kind()));
    write(place.hash, call.hash().short_form());
    const CallFacts& facts = call.facts();
    write(place.facts, static_cast<std::uint64_t>(facts.type + 1) << 32 |
                           static_cast<std::uint64_t>(facts.op + 1) << 16 | facts.sizes.size());
    for (std::size_t d = 0; d < facts.sizes.size() && d < kDims; ++d)
      write(place.sizes[d], static_cast<std::uint64_t>(facts.sizes[d]));
    write_origin(place);
    return index;
  }
  // The call at that place goes on, after others: it is kept once more.
  std::size_t begin_again(std::size_t before);
  void end(std::size_t place) { write(places_[place].ended, now()); }

  // The latest call failed, in these words: why the rank goes, if it goes now.
  void note_failure(const std::string& problem);
  // Empty if the rank has called something since.
  std::string failure() const;
  // "in all_reduce #7 for aten::mm", or "after" it; empty before the first call.
  std::string latest() const;
  // What the ring holds, the oldest call first; `reason` says why it is asked for.
  std::string to_json(const std::string& reason) const;
  // To rank_<number>.json in the directory, at once and whole.
  void write_to(const std::string& directory, const std::string& reason) const;
  // The same to the directory that MESHTORCH_FLIGHT_RECORD names; nothing if it names none. Never throws: it
  // is called when something else went wrong.
  void write_if_asked(const std::string& reason) const noexcept;
  // The same where the rank's calls are over, unless a failure was written.
  void write_at_end(const std::string& reason) const noexcept {
    if (!is_written_) write_if_asked(reason);
  }

 private:
  static constexpr std::size_t kDims = 5;
  static constexpr std::size_t kOriginWords = 6;
  using Word = std::atomic<std::uint64_t>;
  struct alignas(64) Place {
    Word began, ended, number, what, hash, facts;
    std::array<Word, kDims> sizes;
    std::array<Word, kOriginWords> origin;  // characters
  };

  static void write(Word& word, std::uint64_t value) { word.store(value, std::memory_order_relaxed); }
  std::size_t next_place() {
    const std::size_t index = count_.fetch_add(1, std::memory_order_relaxed) % kCalls;
    if (has_failed_.load(std::memory_order_relaxed)) has_failed_.store(false, std::memory_order_relaxed);
    write(places_[index].ended, 0);
    write(places_[index].began, now());
    return index;
  }
  static void write_origin(Place& place) {
    std::array<std::uint64_t, kOriginWords> words{};
    if (const CallOrigin* origin = CallOrigin::current()) {
      const std::string& name = origin->name();
      std::memcpy(words.data(), name.data(), std::min(name.size(), sizeof(words)));
    }
    for (std::size_t i = 0; i < kOriginWords; ++i) write(place.origin[i], words[i]);
  }
  static std::string origin_of(const Place& place);
  // Ticks of a clock that takes no system call to read.
  static std::uint64_t now() {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
  }
  // Seconds that a tick takes, as far as the time since the first tells.
  double seconds_per_tick() const;

  const int rank_;
  const int world_size_;
  const std::uint64_t first_ticks_;
  const std::chrono::system_clock::time_point first_time_;
  mutable std::atomic<bool> is_written_ = false;
  std::atomic<std::size_t> count_ = 0;
  std::atomic<bool> has_failed_ = false;
  std::string failure_;
  std::array<Place, kCalls> places_{};
  mutable std::mutex mutex_;
  std::vector<Series> series_;
};

// Of the machine, empty if it has none.
std::string host_name();

// The record of this rank of this process, made at the first call; ranks that are threads have one each.
std::shared_ptr<FlightRecord> flight_record_of(int rank, int world_size);
// The same, null if it was not made.
std::shared_ptr<FlightRecord> known_flight_record_of(int rank);

// Writes the records of all ranks of this process, as far as MESHTORCH_FLIGHT_RECORD names a directory.
void write_flight_records(const std::string& reason);

}  // namespace meshtorch::internal

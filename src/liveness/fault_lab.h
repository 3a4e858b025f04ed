// Where faults are put between ranks, in tests: at the points of each meeting. Without a lab a point is one
// load.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace meshtorch::internal {

enum class FaultPoint : std::uint8_t {
  coming,    // a rank is about to come to a collective: nothing of it is known to the others
  arriving,  // it meets the others, at the beginning or in the middle
  waiting,   // it waits for them, and looks again afterwards
  left,      // it has left a collective
};

class FaultLab {
 public:
  virtual ~FaultLab() = default;
  // A rank is at a point. May block for a while; at `coming` it may throw, or end the process anywhere.
  virtual void at(FaultPoint point, int world_rank) = 0;
};

// The lab of this process; null where there is none. Set while no rank runs.
inline std::atomic<FaultLab*> fault_lab = nullptr;

inline FaultLab* current_fault_lab() { return fault_lab.load(std::memory_order_relaxed); }
inline void fault_point(FaultPoint point, int world_rank) {
  if (FaultLab* lab = current_fault_lab()) [[unlikely]]
    lab->at(point, world_rank);
}

// What the lab makes a rank throw.
struct InjectedFault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// One fault: that rank fails when it is about to come to its collective of this number, of all groups
// together.
struct PlannedFault {
  int rank = 0;
  std::uint64_t call = 1;
  // One of `count` calls of one of `ranks` ranks, by the seed.
  static PlannedFault drawn(std::uint64_t seed, int ranks, std::uint64_t count);
};

// Thread ranks that run one at a time: which of them goes on after each point is drawn from the seed, so that
// a run can be had again. It is the lab of the process while it lives.
class SeededSchedule : public FaultLab {
 public:
  SeededSchedule(std::uint64_t seed, int ranks, std::optional<PlannedFault> fault = std::nullopt);
  ~SeededSchedule() override { fault_lab = nullptr; }
  SeededSchedule(const SeededSchedule&) = delete;
  SeededSchedule& operator=(const SeededSchedule&) = delete;

  void at(FaultPoint point, int world_rank) override;
  // The rank will come to no further point.
  void retire(int world_rank);

  // Of all points in their order: equal for equal runs.
  std::uint64_t trace() const { return trace_; }
  std::uint64_t calls_of(int rank) const { return calls_.at(static_cast<std::size_t>(rank)); }
  // A rank was blocked by something that is no meeting: the ranks ran freely from then on.
  bool was_stuck() const { return is_free_; }

 private:
  void choose_next();
  void wait_for_turn(int rank, std::unique_lock<std::mutex>& lock);

  const std::optional<PlannedFault> fault_;
  std::mutex mutex_;
  std::condition_variable turn_;
  std::mt19937_64 draws_;
  std::set<int> expected_;  // ranks that have not come to their first point
  std::set<int> living_;
  int running_ = -1;
  bool is_free_ = false;
  std::uint64_t trace_ = 0;
  std::vector<std::uint64_t> calls_;
};

// Ranks that are processes: MESHTORCH_FAULT="rank=1 call=37 act=kill" makes that rank throw, exit, kill or
// stop itself when it is about to come to its 37th collective, in the first of the runs that a launcher
// starts. Nothing where the variable is not set.
void take_fault_from_environment();

}  // namespace meshtorch::internal

// Faults between ranks, for tests: a seeded order of thread ranks, and one fault of a process.
#include "liveness/fault_lab.h"

#include <c10/util/Exception.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <sstream>

namespace meshtorch::internal {
namespace {

// A rank that holds the turn and comes to no point is blocked by another that waits for its own.
constexpr std::chrono::seconds kLongestTurn(30);

std::string fault_text(int rank, std::uint64_t call) {
  return c10::str("a fault of the lab: rank ", rank, " at its collective ", call);
}

// One fault of this process.
class ProcessFault : public FaultLab {
 public:
  ProcessFault(PlannedFault fault, std::string act) : fault_(fault), act_(std::move(act)) {}

  void at(FaultPoint point, int world_rank) override {
    if (point != FaultPoint::coming || world_rank != fault_.rank || ++calls_ != fault_.call) return;
    if (act_ == "throw") throw InjectedFault(fault_text(world_rank, fault_.call));
    if (act_ == "exit") std::exit(3);
    raise(act_ == "stop" ? SIGSTOP : SIGKILL);
  }

 private:
  const PlannedFault fault_;
  const std::string act_;
  std::atomic<std::uint64_t> calls_ = 0;
};

}  // namespace

PlannedFault PlannedFault::drawn(std::uint64_t seed, int ranks, std::uint64_t count) {
  std::mt19937_64 draws(seed * 2 + 1);
  PlannedFault fault;
  fault.rank = static_cast<int>(draws() % static_cast<std::uint64_t>(ranks));
  fault.call = 1 + draws() % count;
  return fault;
}

SeededSchedule::SeededSchedule(std::uint64_t seed, int ranks, std::optional<PlannedFault> fault)
    : fault_(fault), draws_(seed), calls_(static_cast<std::size_t>(ranks)) {
  for (int rank = 0; rank < ranks; ++rank) expected_.insert(rank);
  fault_lab = this;
}

void SeededSchedule::choose_next() {
  if (living_.empty() || !expected_.empty()) {
    running_ = -1;
  } else {
    running_ = *std::next(living_.begin(), static_cast<std::ptrdiff_t>(draws_() % living_.size()));
  }
  turn_.notify_all();
}

void SeededSchedule::at(FaultPoint point, int world_rank) {
  std::unique_lock lock(mutex_);
  if (expected_.erase(world_rank) == 1) {
    living_.insert(world_rank);
    if (expected_.empty()) choose_next();
    wait_for_turn(world_rank, lock);
  }
  if (point == FaultPoint::coming) {
    const std::uint64_t call = ++calls_[static_cast<std::size_t>(world_rank)];
    if (fault_ && fault_->rank == world_rank && fault_->call == call)
      throw InjectedFault(fault_text(world_rank, call));
  }
  trace_ = (trace_ ^ (static_cast<std::uint64_t>(world_rank) << 8 | static_cast<std::uint64_t>(point))) *
           0x100000001B3ULL;
  choose_next();
  wait_for_turn(world_rank, lock);
}

void SeededSchedule::wait_for_turn(int rank, std::unique_lock<std::mutex>& lock) {
  const auto may_go = [&] { return is_free_ || running_ == rank; };
  if (turn_.wait_for(lock, kLongestTurn, may_go)) return;
  is_free_ = true;
  turn_.notify_all();
}

void SeededSchedule::retire(int world_rank) {
  const std::scoped_lock lock(mutex_);
  expected_.erase(world_rank);
  living_.erase(world_rank);
  choose_next();
}

void take_fault_from_environment() {
  const char* text = std::getenv("MESHTORCH_FAULT");
  const char* restart = std::getenv("MESHTORCH_RESTART");
  if (text == nullptr || *text == '\0') return;
  if (restart != nullptr && std::string(restart) != "0") return;
  std::istringstream words(text);
  PlannedFault fault;
  std::string act;
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
    if (name == "rank") fault.rank = std::atoi(value.c_str());
    if (name == "call") fault.call = std::strtoull(value.c_str(), nullptr, 10);
    if (name == "act") act = value;
  }
  TORCH_CHECK_VALUE(act == "throw" || act == "exit" || act == "kill" || act == "stop",
                    "meshtorch: MESHTORCH_FAULT is \"", text,
                    "\", which names no act\n  do: write \"rank=1 call=37 act=throw\", or exit, kill, stop");
  static std::unique_ptr<ProcessFault> planned;
  if (planned) return;
  planned = std::make_unique<ProcessFault>(fault, act);
  fault_lab = planned.get();
}

}  // namespace meshtorch::internal

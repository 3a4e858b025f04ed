// Plans by problem, so that a redistribution is searched for once. No torch.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>

#include "redistribute/plan.h"

namespace meshtorch::internal {

std::size_t hash_value(const Problem& problem);

// Safe to share between threads. Holds at most `capacity` plans: when full it is emptied, since
// programs repeat few problems many times and refill it at once.
class PlanCache {
 public:
  explicit PlanCache(std::size_t capacity = 4096) : capacity_(capacity) {}

  // The plan of `problem`, searched for if it is new. Throws as plan_redistribute does, and then
  // keeps nothing.
  std::shared_ptr<const Plan> plan(const Problem& problem);

  std::size_t size() const;
  std::size_t hits() const;
  std::size_t misses() const;
  void clear();

 private:
  struct Hash {
    std::size_t operator()(const Problem& problem) const { return hash_value(problem); }
  };

  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::unordered_map<Problem, std::shared_ptr<const Plan>, Hash> plans_;
  std::size_t hits_ = 0;
  std::size_t misses_ = 0;
};

// The plan from the cache of the process.
std::shared_ptr<const Plan> cached_plan(const Problem& problem);
PlanCache& process_plan_cache();

}  // namespace meshtorch::internal

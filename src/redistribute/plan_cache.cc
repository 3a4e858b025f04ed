// The plan cache: a bounded map behind a mutex; the search runs outside of it.
#include "redistribute/plan_cache.h"

#include <functional>

namespace meshtorch::internal {

std::size_t hash_value(const Problem& problem) {
  std::size_t hash = std::hash<std::int64_t>{}(problem.item_size);
  const auto add = [&](std::size_t value) { hash = hash * 1000003 + value; };
  for (const Shape* shape : {&problem.shape, &problem.mesh}) {
    add(shape->size());
    for (std::int64_t size : *shape) add(std::hash<std::int64_t>{}(size));
  }
  add(hash_value(problem.from));
  add(hash_value(problem.to));
  for (const AxisCost& cost : problem.costs) {
    add(std::hash<double>{}(cost.latency_s));
    add(std::hash<double>{}(cost.seconds_per_byte));
  }
  return hash;
}

std::shared_ptr<const Plan> PlanCache::plan(const Problem& problem) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = plans_.find(problem); found != plans_.end()) {
      ++hits_;
      return found->second;
    }
  }
  auto planned = std::make_shared<const Plan>(plan_redistribute(problem));
  const std::lock_guard lock(mutex_);
  ++misses_;
  if (plans_.size() >= capacity_) plans_.clear();
  return plans_.try_emplace(problem, std::move(planned)).first->second;
}

std::size_t PlanCache::size() const {
  const std::lock_guard lock(mutex_);
  return plans_.size();
}

std::size_t PlanCache::hits() const {
  const std::lock_guard lock(mutex_);
  return hits_;
}

std::size_t PlanCache::misses() const {
  const std::lock_guard lock(mutex_);
  return misses_;
}

void PlanCache::clear() {
  const std::lock_guard lock(mutex_);
  plans_.clear();
  hits_ = 0;
  misses_ = 0;
}

PlanCache& process_plan_cache() {
  static PlanCache cache;
  return cache;
}

std::shared_ptr<const Plan> cached_plan(const Problem& problem) { return process_plan_cache().plan(problem); }

}  // namespace meshtorch::internal

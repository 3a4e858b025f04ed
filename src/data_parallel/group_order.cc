// The order in which the groups of one model run.
#include "data_parallel/group_order.h"

#include <utility>

#include "data_parallel/parameter_group.h"

namespace meshtorch::internal {

void GroupOrder::begin_pass() {
  drop_unused();
  last_pass_ = std::exchange(this_pass_, {});
  ended_.clear();
  is_inside_ = true;
  goes_as_before_ = true;
}

void GroupOrder::end_pass() {
  is_inside_ = false;
  drop_unused();
}

GroupOrder::Group GroupOrder::enter(const Group& group) {
  if (!is_inside_) return nullptr;
  const std::size_t place = this_pass_.size();
  this_pass_.push_back(group);
  goes_as_before_ = goes_as_before_ && place < last_pass_.size() && last_pass_[place].lock() == group;
  return goes_as_before_ && place + 1 < last_pass_.size() ? last_pass_[place + 1].lock() : nullptr;
}

void GroupOrder::leave(const Group& group) {
  if (is_inside_) ended_.push_back(group);
}

GroupOrder::Group GroupOrder::before(const Group& group) const {
  bool is_found = false;
  for (auto other = ended_.rbegin(); other != ended_.rend(); ++other) {
    const Group candidate = other->lock();
    if (is_found && candidate != group) return candidate;
    is_found = is_found || candidate == group;
  }
  return nullptr;
}

void GroupOrder::drop_unused() {
  for (const auto& group : std::exchange(ahead_, {})) {
    if (const auto alive = group.lock()) alive->cancel_gather();
  }
}

void GroupOrder::begin_reduction(const Group& group) {
  if (const auto other = std::exchange(reducing_, group).lock()) other->finish_reductions();
}

}  // namespace meshtorch::internal

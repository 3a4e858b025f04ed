// The order in which the groups of one model run, as its latest forward passes had it: what is gathered ahead
// of time, and what is still being reduced.
#pragma once

#include <memory>
#include <vector>

namespace meshtorch::internal {

class ParameterGroup;

class GroupOrder {
 public:
  using Group = std::shared_ptr<ParameterGroup>;

  // The outermost group begins and ends a forward pass.
  void begin_pass();
  void end_pass();
  // A group begins forward. Gives the one that came next in the last pass; null if there is none, or this
  // pass goes another way.
  Group enter(const Group& group);
  void leave(const Group& group);
  // The one whose backward follows, going by the latest forward pass; null if there is none.
  Group before(const Group& group) const;

  // A group that is being gathered ahead of time; those that turned out not to be needed are let go.
  void note_ahead(const Group& group) { ahead_.push_back(group); }
  void drop_unused();
  // One reduction is under way at a time, so that the gradients of few groups take room: the one before is
  // finished.
  void begin_reduction(const Group& group);

 private:
  using Groups = std::vector<std::weak_ptr<ParameterGroup>>;

  bool is_inside_ = false;
  bool goes_as_before_ = false;
  Groups last_pass_;  // as they began
  Groups this_pass_;
  Groups ended_;  // in this pass, as they ended
  Groups ahead_;
  std::weak_ptr<ParameterGroup> reducing_;
};

}  // namespace meshtorch::internal

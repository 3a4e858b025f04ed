// How much the ranks of a group compare before data moves.
#pragma once

#include <string>

#include "comm/group_call.h"
#include "meshtorch/group.h"

namespace meshtorch::internal {

enum class Agreement : std::uint8_t {
  off,   // on gloo nothing; ranks that share memory compare all the same, since they read each other's
  on,    // each collective: what, of what, and the operator or public call it is for
  full,  // all that it is for, from the outermost call on; and calls that should be alike but send nothing
};

// What MESHTORCH_AGREEMENT says, `on` if it says nothing. Throws if there is no such level.
Agreement agreement_level();

// True if this rank's world compares in full.
bool agrees_in_full();

// A backend whose members can compare a call that sends nothing.
class Comparing {
 public:
  virtual ~Comparing() = default;
  virtual void compare(const GroupCall& call) = 0;
};

// Blocks until all members have come with an equal call; else throws on each what they called. Nothing where
// the backend cannot compare, or this rank is outside.
void agree_on(const Group& group, const GroupCall& call);

// A call that sends nothing: `what` was called with `arguments`, which all members give alike.
class AlikeCall : public GroupCall {
 public:
  AlikeCall(std::string what, std::string arguments);
  std::string text() const override { return what_ + "(" + arguments_ + ")"; }

 private:
  std::string what_;
  std::string arguments_;
};

}  // namespace meshtorch::internal

// Backends that compare calls though nothing is sent.
#pragma once

#include <optional>

#include "signature/collective_signature.h"

namespace meshtorch::internal {

// A backend whose members can compare a call that sends nothing.
class Comparing {
 public:
  virtual ~Comparing() = default;
  virtual void compare(const CollectiveSignature& call) = 0;
  // Whether all members say yes; empty if only a collective can tell. Several threads of a rank may ask.
  virtual std::optional<bool> all_say(const CollectiveSignature& /*call*/, bool /*mine*/) {
    return std::nullopt;
  }
};

}  // namespace meshtorch::internal

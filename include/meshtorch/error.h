// Errors that LibTorch has no class for. Wrong values are c10::ValueError, what is not supported
// c10::NotImplementedError.
#pragma once

#include <c10/util/Exception.h>

#include "meshtorch/api.h"

namespace meshtorch {

// What PyTorch raises as AssertionError: a call that contradicts itself, whatever the values are.
class MESHTORCH_API AssertionError : public c10::Error {
 public:
  using c10::Error::Error;
};

// The ranks of a group called different collectives, or called different things before that send nothing.
// Nothing was sent; the group can be used again.
class MESHTORCH_API DisagreementError : public c10::Error {
 public:
  using c10::Error::Error;
};

// Throws an AssertionError of the message parts unless the condition holds.
template <class... Part>
void check_assertion(bool condition, const Part&... message) {
  if (!condition) throw AssertionError({__func__, __FILE__, __LINE__}, c10::str(message...));
}

}  // namespace meshtorch

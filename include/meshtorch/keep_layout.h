// A scope in which activations stay split as they are.
#pragma once

#include "meshtorch/api.h"

namespace meshtorch {

// While it lives, on this thread, an operator never moves a tensor that is split, where some way to run it
// allows that, whatever it costs to gather the parameters beside it. Parameters are leaves that require
// gradients, and views of such.
class MESHTORCH_API keep_layout {
 public:
  keep_layout();
  ~keep_layout();
  keep_layout(const keep_layout&) = delete;
  keep_layout& operator=(const keep_layout&) = delete;
};

}  // namespace meshtorch

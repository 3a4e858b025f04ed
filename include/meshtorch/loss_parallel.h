// A scope in which cross entropy works on logits that are split by class.
#pragma once

#include "meshtorch/api.h"

namespace meshtorch {

// While it lives, on this thread, log_softmax and nll_loss (and so cross_entropy) of logits that are split
// along the classes leave them split: only maxima, sums and the chosen log-probabilities, one number for each
// sample, are communicated. The backward may run outside the scope.
class MESHTORCH_API loss_parallel {
 public:
  loss_parallel();
  ~loss_parallel();
  loss_parallel(const loss_parallel&) = delete;
  loss_parallel& operator=(const loss_parallel&) = delete;
};

}  // namespace meshtorch

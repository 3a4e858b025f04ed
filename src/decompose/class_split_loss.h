// Cross entropy of logits that are split along the classes: what loss_parallel() switches on.
#pragma once

namespace meshtorch {

class Handler;

// Each runs the call on the shards if its tensor is split by class (forward: only inside a loss_parallel
// scope). False: it did nothing.
bool class_split_log_softmax(Handler& call);
bool class_split_log_softmax_backward(Handler& call);
bool class_split_nll_loss(Handler& call);
bool class_split_nll_loss_backward(Handler& call);

}  // namespace meshtorch

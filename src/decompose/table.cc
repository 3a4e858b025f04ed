// The table of decompositions.
#include "decompose/families.h"

namespace meshtorch::internal {

const DecompositionTable& decompositions() {
  static const DecompositionTable table = [] {
    DecompositionTable ops;
    add_attention_decompositions(ops);
    add_batch_norm_decompositions(ops);
    add_composite_decompositions(ops);
    add_copy_decompositions(ops);
    add_embedding_decompositions(ops);
    add_forward_mode_decompositions(ops);
    add_gradient_scale_decompositions(ops);
    add_linear_decompositions(ops);
    add_loss_decompositions(ops);
    add_multinomial_decompositions(ops);
    add_norm_decompositions(ops);
    add_random_decompositions(ops);
    add_reduce_decompositions(ops);
    add_strided_view_decompositions(ops);
    return ops;
  }();
  return table;
}

}  // namespace meshtorch::internal

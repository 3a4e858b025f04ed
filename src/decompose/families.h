// The families of decompositions, each in its file; table.cc calls them by name.
#pragma once

#include "operator/decomposition.h"

namespace meshtorch::internal {

void add_attention_decompositions(DecompositionTable& ops);
void add_batch_norm_decompositions(DecompositionTable& ops);
void add_composite_decompositions(DecompositionTable& ops);
void add_copy_decompositions(DecompositionTable& ops);
void add_embedding_decompositions(DecompositionTable& ops);
void add_forward_mode_decompositions(DecompositionTable& ops);
void add_gradient_scale_decompositions(DecompositionTable& ops);
void add_linear_decompositions(DecompositionTable& ops);
void add_loss_decompositions(DecompositionTable& ops);
void add_multinomial_decompositions(DecompositionTable& ops);
void add_norm_decompositions(DecompositionTable& ops);
void add_random_decompositions(DecompositionTable& ops);
void add_reduce_decompositions(DecompositionTable& ops);
void add_strided_view_decompositions(DecompositionTable& ops);

}  // namespace meshtorch::internal

// Composite operators, above autograd: LibTorch decomposes them, and what they make inside is known to be
// equal on all ranks.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "runtime/key.h"

namespace meshtorch::internal {

// The kernels of the composite key. (register_kernels.cc)
using CompositeKernel = void(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                             torch::jit::Stack* stack);

// By its parts, or on whole tensors if they look into memory; the outermost one gives distributed results.
CompositeKernel run_composite;
// An out= variant of a composite operator.
CompositeKernel run_composite_out;
// A composite operator that LibTorch would decompose wrongly, or otherwise than on a real device: by the
// decomposition that it has.
CompositeKernel run_taken_composite;
// An operator, composite or not, with a derivative that is a plain zero in LibTorch's formulas.
CompositeKernel run_guarded;
CompositeKernel run_guarded_view;
CompositeKernel run_guarded_composite;
// An operator that was not known when meshtorch was loaded.
CompositeKernel run_unknown;

// The keys of a call that are below the composite one.
inline c10::DispatchKeySet below_composite(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kCompositeKey);
}

// Some argument is out=.
bool has_out(const c10::OperatorHandle& op);

// What LibTorch does with the operator, for decompositions that do not apply.
void run_as_composite(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace meshtorch::internal

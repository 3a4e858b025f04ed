// The dispatch key that brings operators on meshtorch's tensors to meshtorch.
#pragma once

#include <c10/core/DispatchKey.h>

namespace meshtorch {

// Below autograd, above the backends, and free in LibTorch 2.13. A later LibTorch may take it: this is the
// one place to change, with the registrations in dispatch/fallback.cc and dispatch/direct.cc.
constexpr c10::DispatchKey kMeshKey = c10::DispatchKey::Fake;

// Above autograd, free too: tells that a composite operator is running. Registered in dispatch/mixing.cc.
constexpr c10::DispatchKey kCompositeKey = c10::DispatchKey::DeferredInit;

}  // namespace meshtorch

// The dispatch keys that bring operators on meshtorch's tensors to meshtorch.
#pragma once

#include <c10/core/DispatchKey.h>

namespace meshtorch::internal {

// Below autograd, above the backends, and free in LibTorch 2.13 to 2.15. A later LibTorch may take it: this
// is the one place to change; dispatch/register_kernels.cc registers the kernels of all four keys.
constexpr c10::DispatchKey kMeshKey = c10::DispatchKey::Fake;

// Above autograd, free too: tells that a composite operator is running.
constexpr c10::DispatchKey kCompositeKey = c10::DispatchKey::DeferredInit;

// In no tensor, but in the set of keys of each thread that is a rank: brings plain random operators past the
// rank's generator.
constexpr c10::DispatchKey kThreadRankKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

// In no tensor, but in the set of keys of a thread while an on_meta_device lives there.
constexpr c10::DispatchKey kMetaDeviceKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

}  // namespace meshtorch::internal

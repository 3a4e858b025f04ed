// Python's dispatch modes (TorchDispatchMode) and the library: a mode sees an operator on distributed tensors
// once, as the program called it, and nothing of what the library does for it.
#pragma once

#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <optional>

#include "meshtorch/api.h"

namespace meshtorch::internal {

// Whether a mode of the program is active on this thread. Modes of LibTorch itself, as that of fake tensors,
// do not count.
inline bool has_modes() { return c10::impl::TorchDispatchModeTLS::any_modes_set(/*skip_infra_modes=*/true); }

// While it lives, no mode of the program is active on this thread.
class MESHTORCH_FOR_PYTHON HiddenFromModes {
 public:
  HiddenFromModes() {
    if (has_modes()) hide();
  }
  ~HiddenFromModes() {
    if (modes_) restore();
  }
  HiddenFromModes(const HiddenFromModes&) = delete;
  HiddenFromModes& operator=(const HiddenFromModes&) = delete;

 private:
  void hide();
  void restore();

  std::optional<c10::impl::TorchDispatchModeTLS> modes_;
};

}  // namespace meshtorch::internal

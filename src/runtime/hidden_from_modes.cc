// Modes of Python, by what LibTorch knows of them: this library needs no Python.
#include "runtime/hidden_from_modes.h"

#include <utility>

namespace meshtorch::internal {

using Modes = c10::impl::TorchDispatchModeTLS;

void HiddenFromModes::hide() {
  modes_ = Modes::get_state();
  while (has_modes()) Modes::pop_stack();
}

void HiddenFromModes::restore() { Modes::set_state(*std::exchange(modes_, std::nullopt)); }

}  // namespace meshtorch::internal

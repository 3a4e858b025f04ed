// From where in the program a rank calls a collective: compared where ranks compare in full, in words when
// they do not agree.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "meshtorch/api.h"
#include "signature/call_hash.h"

namespace meshtorch::internal {

// So many functions of the program count, from the innermost on: a helper that several others call is told
// apart by who calls it.
inline constexpr std::size_t kPlaceDepth = 4;

// The functions of the program that are running, without those of meshtorch, LibTorch and the C++ runtime.
class CallPlace {
 public:
  // Of the calling thread; null if the program is not on its stack.
  static std::shared_ptr<const CallPlace> here();

  // Equal for one place in all processes that run the same program, wherever it was loaded.
  void add_to(CallHash& hash) const;
  // "step (train.cc:12), called by main (train.cc:80)". Slow: asks for what the debug information says.
  std::string text() const;

 private:
  struct Frame {
    std::string file;  // of the program, or of a library of its own
    std::uint64_t offset;
  };
  static std::string text_of(const Frame& frame);

  std::vector<Frame> frames_;
  std::string said_;
};

// Whoever knows another language of programs gives a function that says where the calling thread is in one,
// in the form of CallPlace::text(), empty if it is in none. It is asked instead of reading the stack.
MESHTORCH_FOR_PYTHON void set_place_in_program(std::string (*say)());

}  // namespace meshtorch::internal

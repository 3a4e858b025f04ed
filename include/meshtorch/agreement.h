// How much the ranks of a group compare before data moves.
#pragma once

#include <cstdint>

namespace meshtorch {

// Ranks that differ get one and the same error, which lists who called what, and nothing is sent. All ranks
// of a world have the same level.
enum class Agreement : std::uint8_t {
  off,    // on gloo nothing; ranks that share memory compare their collectives all the same
  calls,  // each collective, the operator it is for, and what the ranks called alike since their last one
  on,     // that, what the tensor was made of whose data moves, and from which line of the program a
          // collective is called to which all ranks come alike
  full,   // all that it is for, from the outermost call on, the module, and from where in the program it is
          // called; calls that send nothing at once
};

}  // namespace meshtorch

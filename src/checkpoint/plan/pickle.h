// Python's pickles, read as data: what they would call is named and never called. No torch.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace meshtorch::checkpoint::internal {

// One value. Several may share a part, so that a small file can stand for a large tree: whoever goes through
// it counts.
struct Pickled {
  enum class Kind : std::uint8_t { none, boolean, integer, number, text, list, dict, global, object };
  Kind kind = Kind::none;
  std::int64_t integer = 0;  // of a boolean too
  double number = 0;
  std::string text;  // of text; "module.name" of a global, and of what an object was made by
  // Of a list or tuple; keys and values of a dict in turns; what an object was made of.
  std::vector<const Pickled*> items;
  const Pickled* state = nullptr;  // that an object was given after it was made

  // The value of a dict's key, or of an object whose state is a dict; null if there is none.
  const Pickled* find(std::string_view key) const;
};

// All values of a pickle, and the one that it is. They lie side by side, so that one that is nested a million
// deep goes as it came.
struct Pickle {
  std::deque<Pickled> values;
  const Pickled* root = nullptr;
};

// Reads the protocols 2 to 5 as far as data needs them. Throws std::invalid_argument that names the file and
// the byte where it is not understood.
Pickle read_pickle(const std::string& path, std::string_view bytes);

}  // namespace meshtorch::checkpoint::internal

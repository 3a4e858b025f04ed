// How the parameters of the modules that can be split are split, by columns (outputs) and by rows (inputs).
#pragma once

#include <map>
#include <optional>
#include <string>

#include "meshtorch/placement.h"
#include "nn/edges.h"

namespace torch::nn {
class Module;
}

namespace meshtorch::internal {

// What a style has to know of a module that it splits, in whichever language the module is written.
struct SplittableModule {
  enum class Kind : std::uint8_t { linear, embedding, convolution };
  Kind kind;
  std::int64_t inputs;     // features or channels that come in; of an embedding nothing
  std::int64_t space = 0;  // dims over which a convolution runs
  std::int64_t groups = 1;
};
// Nothing for a module that cannot be split.
std::optional<SplittableModule> as_splittable(torch::nn::Module& module);

struct Partition {
  std::map<std::string, Placement> parameters;  // others are replicated
  Placement input;                              // what the split module works on
  Placement output;                             // what it gives
  std::optional<KnownSize> input_size = std::nullopt;
};
Partition split_by_columns(const SplittableModule& module);
Partition split_by_rows(const SplittableModule& module);

}  // namespace meshtorch::internal

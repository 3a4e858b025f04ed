// How the parameters of the modules that can be split are split, by columns (outputs) and by rows (inputs).
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <optional>
#include <string>

#include "meshtorch/placement.h"
#include "nn/edges.h"

namespace meshtorch {

struct Partition {
  std::map<std::string, Placement> parameters;  // others are replicated
  Placement input;                              // what the split module works on
  Placement output;                             // what it gives
  std::optional<KnownSize> input_size = std::nullopt;
};

// Nothing for a module that cannot be split this way.
std::optional<Partition> split_by_columns(torch::nn::Module& module);
std::optional<Partition> split_by_rows(torch::nn::Module& module);

}  // namespace meshtorch

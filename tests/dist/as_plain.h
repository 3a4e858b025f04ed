// Runs one function on split inputs and on plain ones, and compares all that comes out.
#pragma once

#include "numbers.h"

namespace meshtorch::testing {

struct Placed {
  torch::Tensor whole;  // differentiated if it has a floating type
  mt::Placement placement;
};

using Inputs = std::vector<torch::Tensor>;
using Function = std::function<std::vector<torch::Tensor>(const Inputs&)>;

// Fails the test unless `f` gives on `n` ranks what it gives on one: shape, type and value of every result
// and of every gradient, all of them distributed. A case without any gradient is to be written as such:
// `differentiated = false`.
void expect_as_plain(int n, const std::vector<Placed>& inputs, const Function& f, bool differentiated = true);

}  // namespace meshtorch::testing

// Draws calls of an operator: from its samples with other sizes, else from its schema alone.
#pragma once

#include <random>

#include "../dist/placed_call.h"

namespace meshtorch::testing {

using Random = std::mt19937;

// True if the operator takes a tensor.
bool takes_tensors(const c10::OperatorHandle& op);

struct DrawnCall {
  Call call;
  Run expected;
};

// Up to `count` calls that plain LibTorch accepts; none if it refused all that was tried. With trials each
// call is made in a process of its own first, and left out where plain LibTorch dies or gives memory that
// nobody wrote.
std::vector<DrawnCall> draw_calls(const c10::OperatorHandle& op, int count, Random& random, bool with_trials);

// A mesh of 2 to 4 ranks, and a placement of each tensor and of each incoming gradient.
PlacedCall draw_placements(const DrawnCall& drawn, Random& random);

// The sizes of the tensors; and the call with `to` for the size `from` of every tensor, for bounds of
// indices, and, if asked, in lists of integers.
std::vector<int64_t> sizes_in(Call call);
Call with_size(Call call, int64_t from, int64_t to, bool in_lists);

// The smallest call that is still wrong: fewer ranks, more Replicate, smaller sizes.
PlacedCall shrunk(const PlacedCall& wrong);

}  // namespace meshtorch::testing

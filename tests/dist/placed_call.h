// A call with its tensors placed on a mesh, and the verdict on it: right, refused or wrong, compared with the
// plain call.
#pragma once

#include "call.h"

namespace meshtorch::testing {

// How far the tensors of a run move when last digits of what the call is given are others.
struct Moves {
  std::vector<torch::Tensor> results, arguments, gradients;
};

// What a call gave: its results, list elements one by one, then its arguments as they were afterwards, and
// the gradients of its floating arguments.
struct Run {
  std::vector<c10::IValue> results;
  std::vector<torch::Tensor> arguments;
  std::vector<torch::Tensor> incoming;   // the gradients of its results that were given, plain
  std::vector<torch::Tensor> gradients;  // none where LibTorch cannot differentiate the call
  bool is_differentiated = false;
  std::shared_ptr<const Moves> moves = nullptr;  // where they are asked for
};

// What tensors hold that are passed for results to be written to.
enum class Before : std::uint8_t { numbers, other_numbers };

// What plain LibTorch gives; nothing if it refuses the call. Random operators are run on one rank instead,
// since meshtorch has random numbers of its own.
std::optional<Run> plain_run(const Call& call, Before in_outputs = Before::numbers);

// The call with other numbers in tensors of the same shapes, and what plain LibTorch gives for it; the call
// itself where it refuses those numbers.
struct OtherRun {
  Call call;
  Run expected;
};
OtherRun with_other_numbers(const Call& call, const Run& expected);

// The tensor on the mesh. The terms of pending sums are unequal on purpose, and add up without rounding.
torch::Tensor placed_tensor(const torch::Tensor& whole, const mt::DeviceMesh& mesh,
                            const mt::Placements& placements);

struct PlacedCall {
  Call call;
  std::vector<int64_t> mesh;                  // its shape
  std::vector<mt::Placements> placements;     // one for each tensor
  std::vector<mt::Placements> incoming = {};  // one for each incoming gradient; replicated where it has none

  // "mm: f[5,4], f[4,6] | 2x2 | S(0) R, P R | R P", which parse reads; the incoming gradients may be missing.
  std::string to_string() const;
  static PlacedCall parse(const std::string& text);
};

struct Verdict {
  enum class Kind : std::uint8_t { right, refused, wrong };
  Kind kind = Kind::right;
  std::string what = {};       // the error, or what is wrong
  bool is_replicated = false;  // an operator without a rule had to run on whole tensors
  bool is_small = false;       // wrong by little
};

// Runs the call twice on thread ranks, the second time from the decisions of the first, with other numbers.
// It is refused if every rank threw an error of its own before it waited for others. Numbers of narrow types
// that lie a little apart are right if those of the same call in double precision are; those of double
// precision if last digits of the operands move the plain call as much.
Verdict judge(const PlacedCall& placed, const Run& expected);

// Runs it on this rank of a world that is there; throws what is wrong.
void run_on_rank(const PlacedCall& placed, const mt::DeviceMesh& mesh, const Run& expected);

}  // namespace meshtorch::testing

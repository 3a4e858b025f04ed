// How an operator runs on distributed tensors: looked up once, on its first call.
#pragma once

#include <cstdint>
#include <string>

namespace meshtorch::internal {

struct Decomposition;
struct OperatorInfo;

struct Handling {
  enum class Kind : std::uint8_t {
    rule,               // split as its rule says; on whole tensors if it has none, or none fits
    decomposition,      // written out in other operators by meshtorch
    composite,          // decomposed by LibTorch; with a decomposition, that is asked first, above autograd
    inplace_reshape,    // changes its argument's shape in place: the functional operator says to what
    via_functional,     // the functional operator makes the results, and they are copied into what is written
    replicated_random,  // random, with a generator and no rule: every rank draws the same whole tensor
    rejected,
  };
  Kind kind = Kind::rule;
  const Decomposition* decomposition = nullptr;
  const char* refusal = nullptr;  // the words that follow the operator's name
};

Handling handling_of(const OperatorInfo& info);

// In one word or two, for records and messages: "rule", "by hand", "decomposed", "replicated", "refused".
std::string describe(const OperatorInfo& info);

}  // namespace meshtorch::internal

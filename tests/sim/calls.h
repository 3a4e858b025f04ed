// Operators called by name, with arguments to prove their rules on: what functions of torch:: do not reach.
#pragma once

#include <ATen/core/stack.h>

#include <map>

#include "../dist/samples.h"
#include "dispatch/operator.h"

namespace meshtorch::testing {

// Tensors in schema order, an undefined one for an optional that is not given; all else by name, or its
// default.
struct Call {
  std::string op;  // "sum.dim_IntList"
  std::vector<c10::IValue> tensors;
  std::map<std::string, c10::IValue> others = {};
};

// The arguments in schema order.
torch::jit::Stack arguments_of(const Call& call);

// The same as a sample, so that it can be differentiated.
Sample sample_of(const Call& call);

// For every rule whose operands are all `...`: calls on tensors of one shape and of several, of each type
// that the operator takes.
std::vector<Call> pointwise_calls();

std::vector<Call> reduction_calls();
std::vector<Call> shape_calls();
std::vector<Call> index_calls();
std::vector<Call> network_calls();
std::vector<Call> pooling_calls();

std::vector<Call> all_calls();

}  // namespace meshtorch::testing

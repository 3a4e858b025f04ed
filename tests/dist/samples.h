// The one table of operators with inputs to try them on: samples.txt, in which every line is calls of
// operators.
#pragma once

#include "call.h"

namespace meshtorch::testing {

// All lines, one call for each operator that a line names.
const std::vector<Call>& all_samples();

// The calls in the table of this operator. An in-place or out= variant takes those of the operator that it is
// a variant of, with new tensors to write to.
std::vector<Call> samples_of(const c10::OperatorHandle& op);

// The call of `variant` with the arguments of `sample`; nothing if it has others. What it writes besides are
// tensors like the results of the sample.
std::optional<Call> as_variant(const Call& sample, const c10::OperatorHandle& variant);

// Whether another version of LibTorch than this one has an operator of this name, as the records of the
// property test say. Operators come and go: rules and samples name those of all versions.
bool is_of_another_version(const std::string& name);

// Why an operator is only called as its samples say, or not at all; empty for most.
std::string reason_not_to_draw(const std::string& name);

}  // namespace meshtorch::testing

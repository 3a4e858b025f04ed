// What is known of a number before the call that it is an argument of.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>

namespace meshtorch::internal {

enum class KnownNumber : std::uint8_t { no, zero, nonzero };

// A number, also in a tensor without dims that is plain or replicated, which all ranks have alike; `no` for
// every other tensor, which nobody looks into.
KnownNumber known_number(const at::Tensor& tensor);
// For a list of numbers: zero if one of them is.
KnownNumber known_number(const c10::IValue& argument);

}  // namespace meshtorch::internal

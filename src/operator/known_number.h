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

// The same of a tensor of any size, by a look at all of its numbers: zero if one of them is.
KnownNumber known_numbers(const at::Tensor& tensor);

// While it lives, on this thread, known_number() of the tensor is `nonzero`: somebody has looked.
class KnownNonzero {
 public:
  explicit KnownNonzero(const at::Tensor& tensor);
  ~KnownNonzero();
  KnownNonzero(const KnownNonzero&) = delete;
  KnownNonzero& operator=(const KnownNonzero&) = delete;

 private:
  const c10::TensorImpl* before_;
};

}  // namespace meshtorch::internal

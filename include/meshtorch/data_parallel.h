// What fully_shard and replicate have in common: precision, and scopes in which gradients stay unreduced.
#pragma once

#include <c10/core/ScalarType.h>

#include <memory>
#include <optional>
#include <vector>

#include "meshtorch/api.h"

namespace torch::nn {
class Module;
}

namespace meshtorch {

namespace internal {
class ParameterGroup;
}  // namespace internal

// In which types a module computes. What is not given stays as it is.
struct MixedPrecisionPolicy {
  // Of the whole parameters, and so of what the module computes with them.
  std::optional<c10::ScalarType> param_dtype = std::nullopt;
  // In which gradients are sent and added up. Default: as they come.
  std::optional<c10::ScalarType> reduce_dtype = std::nullopt;
  // To which the floating-point outputs of the module are converted.
  std::optional<c10::ScalarType> output_dtype = std::nullopt;
  // Converts the floating-point inputs of the module to param_dtype.
  bool cast_forward_inputs = true;
};

// While it lives, gradients of the module and of all below it are not reduced: each rank adds its own to
// those that it keeps, and the first backward pass after it reduces the sum.
class MESHTORCH_API NoSync {
 public:
  explicit NoSync(torch::nn::Module& module);
  ~NoSync();
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  std::vector<std::shared_ptr<internal::ParameterGroup>> silenced_;
};

}  // namespace meshtorch

// The names that safetensors files give to LibTorch's element types.
#pragma once

#include <c10/core/ScalarType.h>

#include <string>

namespace meshtorch::safetensors::internal {

// Throw NotImplementedError for a type that the format, or LibTorch, does not have. `tensor` is what has the
// type.
std::string dtype_name(at::ScalarType type, const std::string& tensor);
at::ScalarType dtype_named(const std::string& name);

}  // namespace meshtorch::safetensors::internal

// Errors of a language that embeds the library, such as Python, which has shape functions of its own.
#pragma once

#include <exception>

#include "meshtorch/api.h"

namespace meshtorch::internal {

// Given an error that is none of LibTorch's: true if it says that the arguments are wrong. If not (the shapes
// depend on data, or nobody wrote the function), or if `forgive`, the error is forgotten, also where the
// language keeps it beside the exception.
using ShapeErrorReader = bool (*)(const std::exception& error, bool forgive);

// For all ranks of the process, once, before there are any.
MESHTORCH_FOR_PYTHON void set_shape_error_reader(ShapeErrorReader reader);

// True if the error of a shape function is to be thrown on. Called while it is caught.
bool is_wrong_call(const std::exception& error, bool forgive);

}  // namespace meshtorch::internal

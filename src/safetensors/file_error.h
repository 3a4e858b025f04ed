// What is thrown when the system refuses something about a file. No torch.
#pragma once

#include <stdexcept>
#include <string>

namespace meshtorch::safetensors::internal {

// "meshtorch: cannot open the file: No such file or directory", where, and what to do; `error` is an errno.
std::runtime_error file_error(const std::string& what, const std::string& path, int error);

}  // namespace meshtorch::safetensors::internal

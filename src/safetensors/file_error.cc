// What is thrown when the system refuses something about a file.
#include "safetensors/file_error.h"

#include <cerrno>
#include <system_error>

namespace meshtorch::safetensors::internal {
namespace {

const char* remedy(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return "check the path";
    case EISDIR:
      return "name a file in this directory";
    case ENOSPC:
    case EDQUOT:
      return "free space, or choose another directory";
    case EFBIG:
      return "allow larger files (ulimit -f), or save over more ranks";
    case EACCES:
    case EPERM:
    case EROFS:
      return "check the permissions, or choose another directory";
    default:
      return "check the file and its file system";
  }
}

}  // namespace

std::runtime_error file_error(const std::string& what, const std::string& path, int error) {
  return std::runtime_error("meshtorch: " + what + " the file: " + std::generic_category().message(error) +
                            "\n  in: " + path + "\n  do: " + remedy(error));
}

}  // namespace meshtorch::safetensors::internal

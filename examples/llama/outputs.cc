// Files and folders that can be written, found out by opening or making them.
#include "outputs.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace llama {
namespace {

namespace fs = std::filesystem;

std::string words_of(int error) { return std::generic_category().message(error); }

// Absolute, and without a slash at its end.
fs::path full_path(const std::string& path) {
  const fs::path full = fs::absolute(path);
  return full.has_filename() ? full : full.parent_path();
}

// Why a file cannot be written; empty if it can.
std::string trouble_with_file(const std::string& path) {
  const fs::path folder = fs::absolute(path).parent_path();
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) return "there is no folder " + folder.string();
  const fs::file_status status = fs::status(path, ignored);
  if (fs::is_directory(status)) return "it is a folder";
  const bool is_there = fs::exists(status);
  // Opening a pipe would wait for someone to read from it.
  if (is_there && !fs::is_regular_file(status))
    return ::access(path.c_str(), W_OK) == 0 ? "" : words_of(errno);
  const int file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | (is_there ? 0 : O_CREAT | O_EXCL), 0666);
  if (file < 0)
    return !is_there && errno == EEXIST ? "" : words_of(errno);  // a link to what is not there yet
  ::close(file);
  if (!is_there) ::unlink(path.c_str());
  return "";
}

std::string trouble_with_new_file_in(const fs::path& folder) {
  std::string name = (folder / ".meshtorch_XXXXXX").string();
  const int file = ::mkostemp(name.data(), O_CLOEXEC);
  if (file < 0) return words_of(errno);
  ::close(file);
  ::unlink(name.c_str());
  return "";
}

// Why files cannot be written to a folder, which is made if it is missing, with those above it.
std::string trouble_with_folder(const std::string& path) {
  fs::path there = full_path(path), missing;
  std::error_code ignored;
  while (!fs::exists(there, ignored) && there.has_relative_path()) {
    missing = there;
    there = there.parent_path();
  }
  if (!fs::is_directory(there, ignored)) return there.string() + " is no folder";
  if (missing.empty()) return trouble_with_new_file_in(there);
  if (::mkdir(missing.c_str(), 0777) != 0) return words_of(errno);
  ::rmdir(missing.c_str());
  return "";
}

void check_file(const char* option, const char* what, const std::string& path) {
  if (path.empty()) return;
  const std::string trouble = trouble_with_file(path);
  TORCH_CHECK_VALUE(trouble.empty(), "meshtorch-llama: cannot write the ", what, " ", path, ": ", trouble,
                    "\n  option ", option, "\n  do: name a file in a folder that exists");
}

void check_folder(const char* option, const char* what, const std::string& path) {
  if (path.empty()) return;
  const std::string trouble = trouble_with_folder(path);
  TORCH_CHECK_VALUE(trouble.empty(), "meshtorch-llama: cannot write the ", what, " ", path, ": ", trouble,
                    "\n  option ", option, "\n  do: name a folder that can be made, or written to");
}

// The curve is drawn after the last checkpoint, and may lie in the folder that this one makes.
bool is_in_folder_to_come(const std::string& file, const std::string& checkpoint) {
  if (file.empty() || checkpoint.empty() || fs::exists(checkpoint)) return false;
  return full_path(file).parent_path().lexically_normal() == full_path(checkpoint).lexically_normal();
}

}  // namespace

void check_outputs(const TrainOptions& options) {
  check_folder("--checkpoint", "checkpoint", options.checkpoint);
  check_folder("--export", "model", options.export_to);
  check_file("--log", "log", options.log);
  if (!is_in_folder_to_come(options.svg, options.checkpoint)) check_file("--svg", "loss curve", options.svg);
  check_file("--trace", "trace", options.trace);
  check_file("--report", "report", options.report);
}

}  // namespace llama

// A file that is read piece by piece.
#include "safetensors/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <stdexcept>

#include "safetensors/file_error.h"

namespace meshtorch::safetensors::internal {

InputFile::InputFile(const std::string& path) : path_(path) {
  // Opening a pipe without O_NONBLOCK would wait for someone to write to it.
  file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file_ < 0) throw file_error("cannot open", path, errno);
  struct stat status{};
  int error = 0;
  if (::fstat(file_, &status) != 0) {
    error = errno;
  } else if (!S_ISREG(status.st_mode)) {
    error = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
  }
  if (error != 0) {
    ::close(file_);
    throw file_error("cannot read", path, error);
  }
  size_ = static_cast<std::uint64_t>(status.st_size);
}

InputFile::~InputFile() { ::close(file_); }

void InputFile::read(std::uint64_t offset, std::span<std::byte> out) const {
  constexpr std::size_t kMaxRead = std::size_t{1} << 30;  // systems read at most 2 GiB at once
  while (!out.empty()) {
    const ssize_t count =
        ::pread(file_, out.data(), std::min(out.size(), kMaxRead), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw file_error("cannot read", path_, errno);
    if (count == 0) {
      throw std::runtime_error("meshtorch: the file had " + std::to_string(size_) +
                               " bytes when it was opened, and now ends before byte " +
                               std::to_string(offset + 1) + "\n  in: " + path_ +
                               "\n  do: read it again when nobody writes to it");
    }
    out = out.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
}

std::string InputFile::text() const {
  if (size_ > kMaxText) {
    throw std::invalid_argument("meshtorch: the file has " + std::to_string(size_) + " bytes, and " +
                                std::to_string(kMaxText) + " are the most that are read as text\n  in: " +
                                path_ + "\n  do: check the path; this is no list of tensors");
  }
  std::string text(size_, '\0');
  read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

bool is_name_beside(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('\0') == std::string::npos &&
         std::filesystem::path(name).filename() == name;
}

}  // namespace meshtorch::safetensors::internal

// A file that appears under its name only when it is complete: write, fsync, rename, fsync of the directory.
#include "safetensors/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/size_signal.h"
#include "safetensors/file_error.h"

namespace meshtorch::safetensors::internal {
namespace {

constexpr std::size_t kMaxWrite = std::size_t{1} << 30;  // systems write at most 2 GiB at once

template <class Write>
void write_pieces(const std::string& path, std::span<const std::byte> bytes, const Write& write) {
  const meshtorch::internal::SizeSignalBlocked no_signal;
  while (!bytes.empty()) {
    const ssize_t written = write(bytes.data(), std::min(bytes.size(), kMaxWrite));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw file_error("cannot write", path, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void sync_directory(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  const std::string directory = parent.empty() ? "." : parent;
  const int file = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) throw file_error("cannot open the directory of", path, errno);
  const int error = ::fsync(file) == 0 ? 0 : errno;
  ::close(file);
  if (error != 0 && error != EINVAL) throw file_error("cannot sync the directory of", path, error);
}

}  // namespace

std::string temporary_name(const std::string& path) { return path + ".tmp"; }

AtomicFile::AtomicFile(const std::string& path)
    : path_(path),
      temporary_(temporary_name(path)),
      file_(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  if (file_ < 0) throw file_error("cannot create", temporary_, errno);
}

AtomicFile::~AtomicFile() {
  if (file_ >= 0) ::close(file_);
  if (!is_published_) ::unlink(temporary_.c_str());
}

void AtomicFile::append(std::span<const std::byte> bytes) {
  write_pieces(temporary_, bytes,
               [&](const std::byte* data, std::size_t size) { return ::write(file_, data, size); });
}

void AtomicFile::commit() {
  sync_file(file_, temporary_);
  const int file = std::exchange(file_, -1);
  if (::close(file) != 0) throw file_error("cannot close", temporary_, errno);
  publish(temporary_, path_);
  is_published_ = true;
}

void write_all(int file, const std::string& path, std::span<const std::byte> bytes, std::uint64_t offset) {
  write_pieces(path, bytes, [&](const std::byte* data, std::size_t size) {
    const ssize_t written = ::pwrite(file, data, size, static_cast<off_t>(offset));
    if (written > 0) offset += static_cast<std::uint64_t>(written);
    return written;
  });
}

void sync_file(int file, const std::string& path) {
  if (::fsync(file) != 0) throw file_error("cannot sync", path, errno);
}

void publish(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) throw file_error("cannot rename to", to, errno);
  sync_directory(to);
}

void make_directory(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw file_error("cannot make the directory of", path, error.value());
}

}  // namespace meshtorch::safetensors::internal

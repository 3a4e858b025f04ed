// A file that appears under its name only when it is complete and on the disk. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace meshtorch::safetensors::internal {

// Written under a temporary name beside its own; commit() gives it its name. Without commit() it vanishes.
// Every function throws std::runtime_error that says why the file cannot be written.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void append(std::span<const std::byte> bytes);
  void append(std::string_view text) { append(std::as_bytes(std::span(text))); }
  // On the disk under the file's name: a crash after this leaves it whole, a crash before it what was there.
  void commit();

 private:
  std::string path_;
  std::string temporary_;
  int file_ = -1;
  bool is_published_ = false;
};

// The name under which a file is written until it is complete.
std::string temporary_name(const std::string& path);

// The steps that AtomicFile is made of, for files that several ranks write together.
void write_all(int file, const std::string& path, std::span<const std::byte> bytes, std::uint64_t offset);
void sync_file(int file, const std::string& path);
// Renames, then makes the directory remember it.
void publish(const std::string& from, const std::string& to);

// Makes the directory and those above it.
void make_directory(const std::string& path);

}  // namespace meshtorch::safetensors::internal

// A file that is read through memory: only the pages that are touched are loaded. No torch.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace meshtorch::safetensors {

class MappedFile {
 public:
  // Throws std::runtime_error that says why the file cannot be read.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  // Gives the memory of the pages that lie wholly in bytes [begin, end) back; they are read again when
  // needed.
  void release(std::size_t begin, std::size_t end) const;

 private:
  std::string path_;
  std::span<const std::byte> bytes_;
};

}  // namespace meshtorch::safetensors

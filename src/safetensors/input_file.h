// A file that is read piece by piece, so that one that is cut meanwhile is an error and no signal. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace meshtorch::safetensors::internal {

// What lists files or tensors is text of at most this many bytes.
inline constexpr std::uint64_t kMaxText = 100'000'000;

class InputFile {
 public:
  // Throws std::runtime_error that says why the file cannot be read; pipes and devices cannot.
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  // In bytes, when it was opened.
  std::uint64_t size() const { return size_; }
  // Fills `out` with the bytes from `offset` on. Throws std::runtime_error if the file has none there.
  void read(std::uint64_t offset, std::span<std::byte> out) const;
  // The whole file. Throws std::invalid_argument if it is longer than kMaxText.
  std::string text() const;

 private:
  std::string path_;
  int file_ = -1;
  std::uint64_t size_ = 0;
};

// Whether a file that another one names is in the same directory.
bool is_name_beside(const std::string& name);

}  // namespace meshtorch::safetensors::internal

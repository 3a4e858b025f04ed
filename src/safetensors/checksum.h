// Checksums of a file, one for each block of it, so that a part can be checked without reading the rest. No
// torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace meshtorch::safetensors::internal {

inline constexpr std::uint64_t kChecksumBlock = std::uint64_t{4} << 20;

// XXH3, 64 bits.
std::uint64_t checksum(std::span<const std::byte> bytes);

// The checksums of consecutive blocks of kChecksumBlock bytes, the last one shorter.
using Checksums = std::vector<std::uint64_t>;

// Computes them while a file is written.
class BlockChecksums {
 public:
  BlockChecksums();
  ~BlockChecksums();
  BlockChecksums(const BlockChecksums&) = delete;
  BlockChecksums& operator=(const BlockChecksums&) = delete;

  void update(std::span<const std::byte> bytes);
  Checksums finish();

 private:
  struct State;
  void close_block();

  std::unique_ptr<State> state_;
  std::uint64_t in_block_ = 0;
  Checksums done_;
};

}  // namespace meshtorch::safetensors::internal

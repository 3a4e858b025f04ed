// Checksums of a file, one for each block of it.
#include "safetensors/checksum.h"

#include <algorithm>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace meshtorch::safetensors::internal {

struct BlockChecksums::State {
  XXH3_state_t xxh;
};

std::uint64_t checksum(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

BlockChecksums::BlockChecksums() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->xxh); }
BlockChecksums::~BlockChecksums() = default;

void BlockChecksums::update(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto count = std::min<std::size_t>(bytes.size(), kChecksumBlock - in_block_);
    XXH3_64bits_update(&state_->xxh, bytes.data(), count);
    bytes = bytes.subspan(count);
    in_block_ += count;
    if (in_block_ == kChecksumBlock) close_block();
  }
}

Checksums BlockChecksums::finish() {
  if (in_block_ > 0) close_block();
  return std::move(done_);
}

void BlockChecksums::close_block() {
  done_.push_back(XXH3_64bits_digest(&state_->xxh));
  XXH3_64bits_reset(&state_->xxh);
  in_block_ = 0;
}

}  // namespace meshtorch::safetensors::internal

// The metadata of folders that torch.distributed.checkpoint wrote.
#include "checkpoint/plan/dcp_metadata.h"
#include "readers.h"

namespace meshtorch::fuzz {

void read_dcp_metadata(const std::string& bytes) {
  using namespace checkpoint::internal;
  for (const auto& [name, tensor] : DcpMetadata::from_bytes(".metadata", bytes).tensors) {
    for (const DcpChunk& chunk : tensor.chunks)
      require(chunk.file.find('/') == std::string::npos, "a chunk lies outside the folder");
  }
}

}  // namespace meshtorch::fuzz

// What a folder of torch.distributed.checkpoint holds, as its file .metadata says. No torch.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/plan/box.h"

namespace meshtorch::checkpoint::internal {

// A part of a tensor, stored by itself: bytes [begin, begin + length) of a file of the folder.
struct DcpChunk {
  Box box;
  std::string file;
  std::uint64_t begin = 0;
  std::uint64_t length = 0;
};

struct DcpTensor {
  std::string dtype;  // "float32", as Python names it
  Shape shape;
  std::vector<DcpChunk> chunks;  // that are not empty and hold each element once
};

struct DcpMetadata {
  std::map<std::string, DcpTensor> tensors;
  std::vector<std::string> others;  // values that are no tensors, such as numbers

  // Throws std::invalid_argument that names the file and what is wrong with it.
  static DcpMetadata from_bytes(const std::string& path, std::string_view bytes);
};

}  // namespace meshtorch::checkpoint::internal

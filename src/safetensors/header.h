// The header of a safetensors file: which bytes of the file hold which tensor. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/shard.h"

namespace meshtorch::safetensors::internal {

using namespace meshtorch::internal;

using Metadata = std::map<std::string, std::string>;

// One tensor of a file. `dtype` is the format's own name, "F32"; the bytes are those [begin, end) of the
// file.
struct StoredTensor {
  std::string name;
  std::string dtype;
  Shape shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  friend bool operator==(const StoredTensor&, const StoredTensor&) = default;
};

struct Header {
  std::vector<StoredTensor> tensors;  // in the order of their bytes
  Metadata metadata;
};

// The bytes of one element; 0 for a type that is not known.
std::uint64_t item_size(const std::string& dtype);

// How many bytes of a file of this size come before the data, by its first 8 (or fewer, if it is shorter).
// Throws std::invalid_argument that names the file.
std::uint64_t data_begin(const std::string& file, std::span<const std::byte> first, std::uint64_t file_size);

// Reads the bytes before the data. Throws std::invalid_argument that names the file and the tensor unless the
// header is well formed and the tensors fill the file exactly, each with the bytes of its shape.
Header parse_header(const std::string& file, std::span<const std::byte> bytes, std::uint64_t file_size);

// The first bytes of a file of these tensors, in this order, one after the other. Sets `begin` and `end` of
// each. Throws std::invalid_argument if a name is twice or a type not known.
std::string render_header(std::vector<StoredTensor>& tensors, const Metadata& metadata);

}  // namespace meshtorch::safetensors::internal

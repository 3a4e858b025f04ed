// The index of a checkpoint: which file holds which box of which tensor, whatever mesh wrote it. No torch.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/plan/box.h"
#include "safetensors/checksum.h"

namespace meshtorch::checkpoint::internal {

using Json = nlohmann::json;

struct DataFile {
  std::string name;
  std::uint64_t bytes = 0;
  safetensors::internal::Checksums checksums;
  friend bool operator==(const DataFile&, const DataFile&) = default;
};

// A box of a tensor. In its file it is a tensor of the name chunk_name().
struct Chunk {
  std::string file;
  Box box;
  friend bool operator==(const Chunk&, const Chunk&) = default;
};

struct IndexedTensor {
  std::string dtype;
  Shape shape;
  std::vector<Chunk> chunks;
  friend bool operator==(const IndexedTensor&, const IndexedTensor&) = default;
};

struct Index {
  // Counts the checkpoints that were written to a directory. It is part of the names of their files.
  std::int64_t generation = 0;
  std::map<std::string, DataFile> files;
  std::map<std::string, IndexedTensor> tensors;
  Json values = Json::object();  // by section

  std::string to_text() const;
  // Throws std::invalid_argument that names the path unless the text is what to_text() gave.
  static Index from_text(const std::string& path, const std::string& text);
  friend bool operator==(const Index&, const Index&) = default;
};

std::string chunk_name(const std::string& tensor, const Box& box);  // "model.weight[0:4, 2:6]"
std::string index_path(const std::string& directory);

// Files and checksums as they travel and are stored.
Json to_json(const DataFile& file);
DataFile data_file_from(const Json& json);
Json to_json(const Box& box);
Box box_from(const Json& json);

}  // namespace meshtorch::checkpoint::internal

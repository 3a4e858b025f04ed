// The safetensors files behind a path: one file, or a directory in Hugging Face's form. No torch.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/shard_indices.h"
#include "safetensors/checksum.h"
#include "safetensors/header.h"
#include "safetensors/input_file.h"

namespace meshtorch::safetensors::internal {

using namespace meshtorch::internal;

// One file whose header was checked.
struct OpenFile {
  explicit OpenFile(const std::string& path);
  // A file whose checksums are known: each block is checked before the first of its bytes is given out.
  OpenFile(const std::string& path, Checksums expected);

  // The tensor of this name; null if there is none.
  const StoredTensor* find(const std::string& name) const;
  // Copies elements [begin, end) of a part of one of the tensors. Throws std::invalid_argument if bytes are
  // not as they were written, and std::runtime_error if they cannot be read.
  void read(const StoredTensor& tensor, const ShardIndices& part, std::int64_t begin, std::int64_t end,
            std::byte* out) const;

  InputFile file;
  Header header;

 private:
  void check_blocks(std::uint64_t begin, std::uint64_t end, const std::string& tensor) const;

  std::map<std::string_view, const StoredTensor*> by_name_;
  Checksums expected_;
  mutable std::vector<bool> is_checked_;  // a file belongs to one rank
};

// All tensors of a path. A directory holds model.safetensors, or model.safetensors.index.json, which names
// the file of each tensor; what it does not name is left out.
struct ModelFiles {
  struct Located {
    const OpenFile* file;
    const StoredTensor* tensor;
  };

  // Throws std::runtime_error if a file cannot be read and std::invalid_argument if one is wrong; both name
  // the file.
  explicit ModelFiles(const std::string& path);

  std::vector<std::unique_ptr<OpenFile>> files;
  std::vector<std::string> names;  // file by file, in the order of their bytes
  std::map<std::string, Located> tensors;
  Metadata metadata;  // of all files
};

}  // namespace meshtorch::safetensors::internal

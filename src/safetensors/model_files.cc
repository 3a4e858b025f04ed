// The safetensors files behind a path.
#include "safetensors/model_files.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "core/shallow_json.h"

namespace meshtorch::safetensors::internal {
namespace {

namespace fs = std::filesystem;
using WeightMap = std::map<std::string, std::string>;  // tensor to file

constexpr const char* kOneFile = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

[[noreturn]] void reject(const std::string& what, const std::string& where, const std::string& remedy) {
  throw std::invalid_argument("meshtorch: " + what + "\n  in: " + where + "\n  do: " + remedy);
}

WeightMap read_index(const std::string& path) {
  WeightMap files;
  const std::string text = InputFile(path).text();
  try {
    files = parse_shallow_json(text).at("weight_map").get<WeightMap>();
  } catch (const std::exception& error) {
    reject(std::string("the index cannot be read: ") + error.what(), path,
           "write it again, with a \"weight_map\" from tensors to files");
  }
  if (files.empty()) reject("the index names no tensor", path, "write it again; it is damaged");
  for (const auto& [tensor, file] : files) {
    if (!is_name_beside(file)) {
      reject("the index puts tensor " + in_quotes(tensor) + " into " + in_quotes(file) +
                 ", which is no file beside it",
             path, "name files of the same directory");
    }
  }
  return files;
}

Header header_of(const InputFile& file) {
  std::vector<std::byte> bytes(std::min<std::uint64_t>(file.size(), 8));
  file.read(0, bytes);
  bytes.resize(data_begin(file.path(), bytes, file.size()));
  file.read(0, bytes);
  return parse_header(file.path(), bytes, file.size());
}

// Small runs that lie close together come out of one read.
class Window {
 public:
  explicit Window(const InputFile& file) : file_(file) {}

  void copy(std::uint64_t offset, std::span<std::byte> out) {
    if (out.size() >= kBytes / 16) {
      file_.read(offset, out);
      return;
    }
    if (offset < begin_ || offset + out.size() > begin_ + bytes_.size()) {
      bytes_.resize(std::min<std::uint64_t>(kBytes, file_.size() - offset));
      file_.read(offset, bytes_);
      begin_ = offset;
    }
    std::memcpy(out.data(), bytes_.data() + (offset - begin_), out.size());
  }

 private:
  static constexpr std::uint64_t kBytes = std::uint64_t{64} << 10;

  const InputFile& file_;
  std::vector<std::byte> bytes_;
  std::uint64_t begin_ = 0;
};

}  // namespace

OpenFile::OpenFile(const std::string& path) : file(path), header(header_of(file)) {
  for (const StoredTensor& tensor : header.tensors) by_name_[tensor.name] = &tensor;
}

OpenFile::OpenFile(const std::string& path, Checksums expected) : OpenFile(path) {
  expected_ = std::move(expected);
  is_checked_.resize(expected_.size());
  if ((file.size() + kChecksumBlock - 1) / kChecksumBlock != expected_.size()) {
    reject("the file has " + std::to_string(file.size()) + " bytes, but " + std::to_string(expected_.size()) +
               " blocks of " + std::to_string(kChecksumBlock) + " were written",
           path, "load another checkpoint; this one is damaged");
  }
}

const StoredTensor* OpenFile::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

void OpenFile::check_blocks(std::uint64_t begin, std::uint64_t end, const std::string& tensor) const {
  std::vector<std::byte> bytes;
  for (std::uint64_t block = begin / kChecksumBlock; block * kChecksumBlock < end; ++block) {
    if (is_checked_[block]) continue;
    const std::uint64_t first = block * kChecksumBlock;
    bytes.resize(std::min<std::uint64_t>(kChecksumBlock, file.size() - first));
    file.read(first, bytes);
    if (checksum(bytes) != expected_[block]) {
      reject("tensor " + in_quotes(tensor) + " has other bytes than were written: the checksum of bytes [" +
                 std::to_string(first) + ", " + std::to_string(first + bytes.size()) + ") is wrong",
             file.path(), "load another checkpoint; this one is damaged");
    }
    is_checked_[block] = true;
  }
}

void OpenFile::read(const StoredTensor& tensor, const ShardIndices& part, std::int64_t begin,
                    std::int64_t end, std::byte* out) const {
  const std::uint64_t item = item_size(tensor.dtype);
  Window window(file);
  part.visit_runs(begin, end, [&](std::int64_t first, std::int64_t length) {
    const std::uint64_t offset = tensor.begin + static_cast<std::uint64_t>(first) * item;
    const std::uint64_t bytes = static_cast<std::uint64_t>(length) * item;
    if (!expected_.empty()) check_blocks(offset, offset + bytes, tensor.name);
    window.copy(offset, {out, bytes});
    out += bytes;
  });
}

ModelFiles::ModelFiles(const std::string& path) {
  const bool is_directory = fs::is_directory(path);
  const fs::path one_file = is_directory ? fs::path(path) / kOneFile : fs::path(path);
  const fs::path index = fs::path(path) / kIndex;
  WeightMap located;
  if (is_directory && !fs::exists(one_file)) {
    if (!fs::exists(index)) {
      reject(std::string("the directory has neither ") + kOneFile + " nor " + kIndex, path,
             "name a directory with a Hugging Face model, or one .safetensors file");
    }
    located = read_index(index.string());
  }
  std::map<std::string, const OpenFile*> opened;
  const auto open = [&](const fs::path& file) {
    const OpenFile* made = files.emplace_back(std::make_unique<OpenFile>(file.string())).get();
    opened[file.filename().string()] = made;
    metadata.insert(made->header.metadata.begin(), made->header.metadata.end());
  };
  if (located.empty()) open(one_file);
  for (const auto& [tensor, file] : located) {
    if (opened.contains(file)) continue;
    if (!fs::exists(fs::path(path) / file)) {
      reject("the index names the file " + in_quotes(file) + " for tensor " + in_quotes(tensor) +
                 ", but it is missing",
             index.string(), "copy or download the missing file");
    }
    open(fs::path(path) / file);
  }
  for (const auto& file : files) {
    const std::string name = fs::path(file->file.path()).filename().string();
    for (const StoredTensor& tensor : file->header.tensors) {
      const auto entry = located.find(tensor.name);
      if (!located.empty() && (entry == located.end() || entry->second != name)) continue;
      names.push_back(tensor.name);
      tensors[tensor.name] = {file.get(), &tensor};
    }
  }
  for (const auto& [tensor, file] : located) {
    if (!tensors.contains(tensor)) {
      reject(
          "the index says that tensor " + in_quotes(tensor) + " is in " + in_quotes(file) + ", but it is not",
          index.string(), "download index and files of one model");
    }
  }
}

}  // namespace meshtorch::safetensors::internal

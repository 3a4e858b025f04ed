// The safetensors files behind a path.
#include "safetensors/model_files.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace meshtorch::safetensors {
namespace {

namespace fs = std::filesystem;
using WeightMap = std::map<std::string, std::string>;  // tensor to file

constexpr const char* kOneFile = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

[[noreturn]] void reject(const std::string& what, const std::string& where, const std::string& remedy) {
  throw std::invalid_argument("meshtorch: " + what + "\n  in: " + where + "\n  do: " + remedy);
}

WeightMap read_index(const std::string& path) {
  const MappedFile map(path);
  const auto* begin = reinterpret_cast<const char*>(map.bytes().data());
  WeightMap files;
  try {
    const auto json = nlohmann::json::parse(begin, begin + map.bytes().size());
    files = json.at("weight_map").get<WeightMap>();
  } catch (const nlohmann::json::exception& error) {
    reject(std::string("the index cannot be read: ") + error.what(), path,
           "write it again, with a \"weight_map\" from tensors to files");
  }
  if (files.empty()) reject("the index names no tensor", path, "write it again; it is damaged");
  for (const auto& [tensor, file] : files) {
    const bool is_plain = !file.empty() && fs::path(file).filename() == file && file != "." && file != "..";
    if (!is_plain) {
      reject("the index puts tensor \"" + tensor + "\" into \"" + file + "\", which is no file beside it",
             path, "name files of the same directory");
    }
  }
  return files;
}

}  // namespace

OpenFile::OpenFile(const std::string& path, Checksums expected)
    : map(path),
      header(parse_header(path, map.bytes())),
      expected_(std::move(expected)),
      is_checked_(expected_.size()) {
  if ((map.bytes().size() + kChecksumBlock - 1) / kChecksumBlock != expected_.size()) {
    reject("the file has " + std::to_string(map.bytes().size()) + " bytes, but " +
               std::to_string(expected_.size()) + " blocks of " + std::to_string(kChecksumBlock) +
               " were written",
           path, "load another checkpoint; this one is damaged");
  }
}

void OpenFile::check_blocks(std::uint64_t begin, std::uint64_t end, const std::string& tensor) const {
  for (std::uint64_t block = begin / kChecksumBlock; block * kChecksumBlock < end; ++block) {
    if (is_checked_[block]) continue;
    const std::uint64_t first = block * kChecksumBlock;
    const std::uint64_t size = std::min<std::uint64_t>(kChecksumBlock, map.bytes().size() - first);
    if (checksum(map.bytes().subspan(first, size)) != expected_[block]) {
      reject("tensor \"" + tensor + "\" has other bytes than were written: the checksum of bytes [" +
                 std::to_string(first) + ", " + std::to_string(first + size) + ") is wrong",
             map.path(), "load another checkpoint; this one is damaged");
    }
    is_checked_[block] = true;
  }
}

void OpenFile::read(const StoredTensor& tensor, const ShardIndices& part, std::int64_t begin,
                    std::int64_t end, std::byte* out) const {
  constexpr std::uint64_t kKeptBytes = std::uint64_t{16}
                                       << 20;  // of the map, so that a rank needs little beside its shard
  const std::uint64_t item = item_size(tensor.dtype);
  std::uint64_t kept = tensor.begin;  // what is before was released; runs ascend
  std::uint64_t offset = tensor.begin;
  part.visit_runs(begin, end, [&](std::int64_t first, std::int64_t length) {
    offset = tensor.begin + static_cast<std::uint64_t>(first) * item;
    for (std::uint64_t left = static_cast<std::uint64_t>(length) * item; left > 0;) {
      const std::uint64_t bytes = std::min(left, kKeptBytes);
      if (!expected_.empty()) check_blocks(offset, offset + bytes, tensor.name);
      std::memcpy(out, map.bytes().data() + offset, bytes);
      out += bytes;
      offset += bytes;
      left -= bytes;
      if (offset - kept >= kKeptBytes) {
        map.release(kept, offset);
        kept = offset;
      }
    }
  });
  map.release(kept, offset);
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
      reject("the index names the file \"" + file + "\" for tensor \"" + tensor + "\", but it is missing",
             index.string(), "copy or download the missing file");
    }
    open(fs::path(path) / file);
  }
  for (const auto& file : files) {
    const std::string name = fs::path(file->map.path()).filename().string();
    for (const StoredTensor& tensor : file->header.tensors) {
      const auto entry = located.find(tensor.name);
      if (!located.empty() && (entry == located.end() || entry->second != name)) continue;
      names.push_back(tensor.name);
      tensors[tensor.name] = {file.get(), &tensor};
    }
  }
  for (const auto& [tensor, file] : located) {
    if (!tensors.contains(tensor)) {
      reject("the index says that tensor \"" + tensor + "\" is in \"" + file + "\", but it is not",
             index.string(), "download index and files of one model");
    }
  }
}

}  // namespace meshtorch::safetensors

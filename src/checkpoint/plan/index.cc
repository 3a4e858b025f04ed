// The index of a checkpoint, as JSON that carries its own checksum.
#include "checkpoint/plan/index.h"

#include <charconv>
#include <filesystem>
#include <stdexcept>

#include "core/shallow_json.h"
#include "safetensors/input_file.h"

namespace meshtorch::checkpoint::internal {
namespace {

constexpr const char* kFormat = "meshtorch checkpoint";
constexpr int kVersion = 1;

[[noreturn]] void reject(const std::string& what, const std::string& path) {
  throw std::invalid_argument("meshtorch: " + what + "\n  in: " + path +
                              "\n  do: load another checkpoint; this one is damaged, or is none");
}

std::string hex(std::uint64_t number) {
  char digits[17] = "0000000000000000";
  char text[16];
  char* const end = std::to_chars(text, text + sizeof text, number, 16).ptr;
  std::copy(text, end, digits + 16 - (end - text));
  return digits;
}

std::uint64_t number_from(const std::string& text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, 16);
  if (error != std::errc() || end != text.data() + text.size())
    throw std::invalid_argument("\"" + text + "\" is no checksum");
  return number;
}

std::string checksum_of(const Json& body) {
  const std::string text = body.dump();
  return hex(safetensors::internal::checksum(std::as_bytes(std::span(text))));
}

Shape shape_from(const Json& json) {
  Shape shape;
  for (const Json& size : json) shape.push_back(whole_number<std::int64_t>(size));
  return shape;
}

Json to_json(const IndexedTensor& tensor) {
  Json chunks = Json::array();
  for (const Chunk& chunk : tensor.chunks) {
    Json item = to_json(chunk.box);
    item["file"] = chunk.file;
    chunks.push_back(std::move(item));
  }
  return {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"chunks", std::move(chunks)}};
}

IndexedTensor tensor_from(const Json& json) {
  IndexedTensor tensor{
      .dtype = json.at("dtype").get<std::string>(), .shape = shape_from(json.at("shape")), .chunks = {}};
  for (const Json& item : json.at("chunks"))
    tensor.chunks.push_back({item.at("file").get<std::string>(), box_from(item)});
  return tensor;
}

// What the checksum cannot know: that the writer was right.
void check_tensor(const Index& index, const std::string& name, const std::string& path) {
  const IndexedTensor& tensor = index.tensors.at(name);
  std::vector<Box> boxes;
  for (const Chunk& chunk : tensor.chunks) {
    if (!index.files.contains(chunk.file))
      reject("tensor " + in_quotes(name) + " has a chunk in " + in_quotes(chunk.file) +
                 ", which the index does not list",
             path);
    boxes.push_back(chunk.box);
  }
  if (const std::string words = unfit_chunks(tensor.shape, boxes); !words.empty())
    reject("tensor " + in_quotes(name) + " " + words, path);
}

}  // namespace

std::string chunk_name(const std::string& tensor, const Box& box) { return tensor + box.to_string(); }

std::string index_path(const std::string& directory) {
  return (std::filesystem::path(directory) / "checkpoint.json").string();
}

Json to_json(const Box& box) { return {{"offsets", box.offsets}, {"sizes", box.sizes}}; }

Box box_from(const Json& json) { return {shape_from(json.at("offsets")), shape_from(json.at("sizes"))}; }

Json to_json(const DataFile& file) {
  Json checksums = Json::array();
  for (const std::uint64_t checksum : file.checksums) checksums.push_back(hex(checksum));
  return {{"name", file.name}, {"bytes", file.bytes}, {"checksums", std::move(checksums)}};
}

DataFile data_file_from(const Json& json) {
  DataFile file{json.at("name").get<std::string>(), whole_number<std::uint64_t>(json.at("bytes")), {}};
  for (const Json& checksum : json.at("checksums"))
    file.checksums.push_back(number_from(checksum.get<std::string>()));
  return file;
}

std::string Index::to_text() const {
  Json body{{"generation", generation},
            {"checksum_block", safetensors::internal::kChecksumBlock},
            {"files", Json::array()},
            {"tensors", Json::object()},
            {"values", values}};
  for (const auto& [name, file] : files) body["files"].push_back(to_json(file));
  for (const auto& [name, tensor] : tensors) body["tensors"][name] = to_json(tensor);
  const Json whole{
      {"format", kFormat}, {"version", kVersion}, {"checksum", checksum_of(body)}, {"body", body}};
  return whole.dump(1) + "\n";
}

Index Index::from_text(const std::string& path, const std::string& text) {
  Index index;
  try {
    const Json whole = parse_shallow_json(text);
    if (whole.at("format") != kFormat || whole.at("version") != kVersion)
      throw std::invalid_argument("not \"meshtorch checkpoint\" of version 1");
    const Json& body = whole.at("body");
    if (whole.at("checksum") != checksum_of(body)) throw std::invalid_argument("the checksum is wrong");
    if (body.at("checksum_block") != safetensors::internal::kChecksumBlock)
      throw std::invalid_argument("blocks of another size");
    index.generation = whole_number<std::int64_t>(body.at("generation"));
    for (const Json& json : body.at("files")) {
      const DataFile file = data_file_from(json);
      if (!safetensors::internal::is_name_beside(file.name))
        throw std::invalid_argument(in_quotes(file.name) + " is no file beside the index");
      index.files[file.name] = file;
    }
    for (const auto& item : body.at("tensors").items()) index.tensors[item.key()] = tensor_from(item.value());
    index.values = body.at("values");
  } catch (const std::exception& error) {
    reject(std::string("the index of the checkpoint cannot be read: ") + error.what(), path);
  }
  for (const auto& [name, tensor] : index.tensors) check_tensor(index, name, path);
  return index;
}

}  // namespace meshtorch::checkpoint::internal

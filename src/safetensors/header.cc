// The header of a safetensors file: a length of 8 bytes, then JSON.
#include "safetensors/header.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

namespace meshtorch::safetensors {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeader = 100'000'000;  // the limit of the format
constexpr std::uint64_t kAlignment = 8;            // of the first tensor in files that we write
constexpr const char* kMetadataKey = "__metadata__";

std::string text_of(const Shape& shape) {
  std::string text;
  for (const std::int64_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

// What every error of one file says.
class FileErrors {
 public:
  explicit FileErrors(std::string file) : file_(std::move(file)) {}

  [[noreturn]] void reject(const std::string& what, const std::string& remedy) const {
    throw std::invalid_argument("meshtorch: " + what + "\n  in: " + file_ + "\n  do: " + remedy);
  }
  [[noreturn]] void reject_tensor(const std::string& name, const std::string& what,
                                  const std::string& remedy = "write the file again; it is damaged") const {
    throw std::invalid_argument("meshtorch: tensor \"" + name + "\" " + what + "\n  in: " + file_ +
                                "\n  do: " + remedy);
  }

 private:
  std::string file_;
};

std::uint64_t header_length(std::span<const std::byte> bytes, const FileErrors& errors) {
  if (bytes.size() < kLengthBytes) {
    errors.reject("a safetensors file begins with 8 bytes of header length, but this one has " +
                      std::to_string(bytes.size()) + " bytes",
                  "copy or download the file again; it was cut short");
  }
  std::uint64_t length = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;)
    length = length << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  if (length > bytes.size() - kLengthBytes) {
    errors.reject("the header says that it has " + std::to_string(length) + " bytes, but only " +
                      std::to_string(bytes.size() - kLengthBytes) + " bytes of the file follow",
                  "copy or download the file again; it was cut short, or is no safetensors file");
  }
  if (length > kMaxHeader) {
    errors.reject("the header has " + std::to_string(length) + " bytes; the format allows " +
                      std::to_string(kMaxHeader),
                  "split the tensors over several files");
  }
  return length;
}

Json parse_json(std::span<const std::byte> text, const FileErrors& errors) {
  std::set<std::string> names;
  std::string repeated;
  const auto note_names = [&](int depth, Json::parse_event_t event, Json& parsed) {
    const bool is_name = event == Json::parse_event_t::key && depth == 1;
    if (is_name && !names.insert(parsed.get<std::string>()).second) repeated = parsed.get<std::string>();
    return true;
  };
  Json json;
  try {
    const auto* begin = reinterpret_cast<const char*>(text.data());
    json = Json::parse(begin, begin + text.size(), note_names);
  } catch (const nlohmann::json::exception& error) {
    errors.reject(std::string("the header is not JSON: ") + error.what(),
                  "write the file again; it is damaged, or is no safetensors file");
  }
  if (!json.is_object()) {
    errors.reject("the header is JSON, but not an object of tensors",
                  "write the file again; it is no safetensors file");
  }
  if (!repeated.empty())
    errors.reject_tensor(repeated, "is there twice", "give every tensor a name of its own");
  return json;
}

// The value of an unsigned JSON number that fits int64; nothing else is a size.
std::int64_t size_of(const Json& value, const std::string& name, const FileErrors& errors) {
  const bool fits =
      value.is_number_unsigned() && value.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max();
  if (!fits) errors.reject_tensor(name, "has a size or an offset that is none: " + value.dump());
  return value.get<std::int64_t>();
}

std::uint64_t byte_count(const StoredTensor& tensor, const FileErrors& errors) {
  std::uint64_t bytes = item_size(tensor.dtype);
  for (const std::int64_t size : tensor.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes))
      errors.reject_tensor(tensor.name, "has a shape beyond all memory: " + text_of(tensor.shape));
  }
  return bytes;
}

StoredTensor parse_tensor(const std::string& name, const Json& json, std::uint64_t data_begin,
                          std::uint64_t file_size, const FileErrors& errors) {
  const auto is_list = [&](const char* key) { return json.contains(key) && json.at(key).is_array(); };
  const bool is_complete = json.is_object() && json.contains("dtype") && json.at("dtype").is_string() &&
                           is_list("shape") && is_list("data_offsets") && json.at("data_offsets").size() == 2;
  if (!is_complete)
    errors.reject_tensor(name, "needs \"dtype\", \"shape\" and two \"data_offsets\", but is " + json.dump());

  StoredTensor tensor{.name = name, .dtype = json.at("dtype").get<std::string>(), .shape = {}};
  if (item_size(tensor.dtype) == 0)
    errors.reject_tensor(name, "has the unknown type " + tensor.dtype, "store it as F32, BF16, F16, I64, …");
  for (const Json& size : json.at("shape")) tensor.shape.push_back(size_of(size, name, errors));
  const auto begin = static_cast<std::uint64_t>(size_of(json.at("data_offsets")[0], name, errors));
  const auto end = static_cast<std::uint64_t>(size_of(json.at("data_offsets")[1], name, errors));
  const std::uint64_t data_size = file_size - data_begin;
  const std::string range = "[" + std::to_string(begin) + ", " + std::to_string(end) + ")";
  if (begin > end) errors.reject_tensor(name, "has a byte range that ends before it begins: " + range);
  if (end > data_size) {
    errors.reject_tensor(
        name, "has the bytes " + range + ", but the file has " + std::to_string(data_size) + " bytes of data",
        "copy or download the file again; it was cut short");
  }
  if (const std::uint64_t needed = byte_count(tensor, errors); needed != end - begin) {
    errors.reject_tensor(name, "of type " + tensor.dtype + " and shape " + text_of(tensor.shape) + " takes " +
                                   std::to_string(needed) + " bytes, but has the range " + range);
  }
  tensor.begin = data_begin + begin;
  tensor.end = data_begin + end;
  return tensor;
}

// Every byte of the data belongs to exactly one tensor.
void check_coverage(const std::vector<StoredTensor>& tensors, std::uint64_t data_begin,
                    std::uint64_t file_size, const FileErrors& errors) {
  std::uint64_t end = data_begin;
  const StoredTensor* previous = nullptr;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.begin < end)
      errors.reject_tensor(tensor.name, "overlaps the bytes of tensor \"" + previous->name + "\"");
    if (tensor.begin > end) {
      errors.reject_tensor(tensor.name, "begins " + std::to_string(tensor.begin - end) +
                                            " bytes after the end of what comes before it");
    }
    end = tensor.end;
    previous = &tensor;
  }
  if (end != file_size) {
    errors.reject("the last " + std::to_string(file_size - end) + " bytes of the file belong to no tensor",
                  "write the file again; it is damaged");
  }
}

Metadata parse_metadata(const Json& json, const FileErrors& errors) {
  Metadata metadata;
  for (const auto& item : json.items()) {
    if (!item.value().is_string())
      errors.reject("the metadata \"" + item.key() + "\" is no text", "write the file again; it is damaged");
    metadata[item.key()] = item.value().get<std::string>();
  }
  return metadata;
}

}  // namespace

std::uint64_t item_size(const std::string& dtype) {
  static const std::map<std::string, std::uint64_t> sizes{
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E8M0", 1},
      {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},     {"U32", 4},
      {"F32", 4},  {"I64", 8}, {"U64", 8}, {"F64", 8},     {"C64", 8}};
  const auto found = sizes.find(dtype);
  return found == sizes.end() ? 0 : found->second;
}

Header parse_header(const std::string& file, std::span<const std::byte> bytes) {
  const FileErrors errors(file);
  const std::uint64_t length = header_length(bytes, errors);
  const Json json = parse_json(bytes.subspan(kLengthBytes, length), errors);
  const std::uint64_t data_begin = kLengthBytes + length;
  Header header;
  for (const auto& item : json.items()) {
    if (item.key() == kMetadataKey) {
      header.metadata = parse_metadata(item.value(), errors);
    } else {
      header.tensors.push_back(parse_tensor(item.key(), item.value(), data_begin, bytes.size(), errors));
    }
  }
  std::stable_sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  check_coverage(header.tensors, data_begin, bytes.size(), errors);
  return header;
}

std::string render_header(std::vector<StoredTensor>& tensors, const Metadata& metadata) {
  const FileErrors errors("a file to be written");
  Json json = Json::object();
  if (!metadata.empty()) json[kMetadataKey] = metadata;
  std::set<std::string> names{kMetadataKey};
  std::uint64_t end = 0;
  for (StoredTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second)
      errors.reject_tensor(tensor.name, "is there twice, or has the name of the metadata",
                           "give every tensor a name of its own");
    if (item_size(tensor.dtype) == 0)
      errors.reject_tensor(tensor.name, "has the unknown type " + tensor.dtype, "convert it");
    tensor.begin = end;
    tensor.end = end += byte_count(tensor, errors);
    json[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string text = json.dump();
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  std::string bytes;
  for (std::uint64_t i = 0; i < kLengthBytes; ++i) bytes.push_back(static_cast<char>(text.size() >> (8 * i)));
  bytes += text;
  for (StoredTensor& tensor : tensors) {
    tensor.begin += bytes.size();
    tensor.end += bytes.size();
  }
  return bytes;
}

}  // namespace meshtorch::safetensors

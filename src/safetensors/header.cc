// The header of a safetensors file: a length of 8 bytes, then JSON.
#include "safetensors/header.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "core/shallow_json.h"
#include "safetensors/input_file.h"

namespace meshtorch::safetensors::internal {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kAlignment = 8;  // of the first tensor in files that we write
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
    throw std::invalid_argument("meshtorch: tensor " + in_quotes(name) + " " + what + "\n  in: " + file_ +
                                "\n  do: " + remedy);
  }

 private:
  std::string file_;
};

std::uint64_t header_length(std::span<const std::byte> bytes, std::uint64_t file_size,
                            const FileErrors& errors) {
  if (bytes.size() < kLengthBytes || file_size < kLengthBytes) {
    errors.reject("a safetensors file begins with 8 bytes of header length, but this one has " +
                      std::to_string(std::min<std::uint64_t>(bytes.size(), file_size)) + " bytes",
                  "copy or download the file again; it was cut short");
  }
  std::uint64_t length = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;)
    length = length << 8 | std::to_integer<std::uint64_t>(bytes[i]);
  if (length > file_size - kLengthBytes) {
    errors.reject("the header says that it has " + std::to_string(length) + " bytes, but only " +
                      std::to_string(file_size - kLengthBytes) + " bytes of the file follow",
                  "copy or download the file again; it was cut short, or is no safetensors file");
  }
  if (length > kMaxText) {
    errors.reject(
        "the header has " + std::to_string(length) + " bytes; the format allows " + std::to_string(kMaxText),
        "split the tensors over several files");
  }
  return length;
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
    errors.reject_tensor(name, R"(needs "dtype", "shape" and two "data_offsets", but is )" + json.dump());

  StoredTensor tensor{.name = name, .dtype = json.at("dtype").get<std::string>(), .shape = {}};
  if (item_size(tensor.dtype) == 0)
    errors.reject_tensor(name, "has the unknown type " + in_quotes(tensor.dtype),
                         "store it as F32, BF16, F16, I64, …");
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
      errors.reject_tensor(tensor.name, "overlaps the bytes of tensor " + in_quotes(previous->name));
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
  if (!json.is_object()) errors.reject("the metadata is no object", "write the file again; it is damaged");
  Metadata metadata;
  for (const auto& item : json.items()) {
    if (!item.value().is_string())
      errors.reject("the metadata " + in_quotes(item.key()) + " is no text",
                    "write the file again; it is damaged");
    metadata[item.key()] = item.value().get<std::string>();
  }
  return metadata;
}

// Takes every tensor out of the JSON as soon as it is complete, so that the time is in proportion to the
// text: an object that keeps the order of its members looks through all of them for each one.
class HeaderReader {
 public:
  HeaderReader(std::uint64_t data_begin, std::uint64_t file_size, const FileErrors& errors)
      : data_begin_(data_begin), file_size_(file_size), errors_(errors) {}

  Header read(std::span<const std::byte> text) {
    const auto* begin = reinterpret_cast<const char*>(text.data());
    Json rest;
    try {
      rest = Json::parse(begin, begin + text.size(), [this](int depth, Event event, Json& parsed) {
        return is_kept(depth, event, parsed);
      });
    } catch (const nlohmann::json::exception& error) {
      errors_.reject(std::string("the header is not JSON: ") + error.what(),
                     "write the file again; it is damaged, or is no safetensors file");
    }
    if (!rest.is_object()) reject_other();
    return std::move(header_);
  }

 private:
  using Event = Json::parse_event_t;

  [[noreturn]] void reject_other() const {
    errors_.reject("the header is JSON, but not an object of tensors",
                   "write the file again; it is no safetensors file");
  }

  bool is_kept(int depth, Event event, Json& parsed) {
    const bool is_start = event == Event::object_start || event == Event::array_start;
    if (is_start && depth >= kMaxJsonDepth) {
      errors_.reject("the header is nested deeper than " + std::to_string(kMaxJsonDepth) + " levels",
                     "write the file again; it is damaged, or is no safetensors file");
    }
    if (depth == 0 && event != Event::object_start && event != Event::object_end) reject_other();
    if (depth != 1 || is_start) return true;
    if (event == Event::key) {
      name_ = parsed.get<std::string>();
      if (!names_.insert(name_).second)
        errors_.reject_tensor(name_, "is there twice", "give every tensor a name of its own");
      return true;
    }
    take(parsed);
    return false;
  }

  void take(const Json& value) {
    if (name_ == kMetadataKey) {
      header_.metadata = parse_metadata(value, errors_);
    } else {
      header_.tensors.push_back(parse_tensor(name_, value, data_begin_, file_size_, errors_));
    }
  }

  std::uint64_t data_begin_;
  std::uint64_t file_size_;
  const FileErrors& errors_;
  std::string name_;
  std::set<std::string> names_;
  Header header_;
};

}  // namespace

std::uint64_t item_size(const std::string& dtype) {
  static const std::map<std::string, std::uint64_t> sizes{
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E8M0", 1},
      {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},     {"U32", 4},
      {"F32", 4},  {"I64", 8}, {"U64", 8}, {"F64", 8},     {"C64", 8}};
  const auto found = sizes.find(dtype);
  return found == sizes.end() ? 0 : found->second;
}

std::uint64_t data_begin(const std::string& file, std::span<const std::byte> first, std::uint64_t file_size) {
  return kLengthBytes + header_length(first, file_size, FileErrors(file));
}

Header parse_header(const std::string& file, std::span<const std::byte> bytes, std::uint64_t file_size) {
  const FileErrors errors(file);
  const std::uint64_t begin = data_begin(file, bytes, file_size);
  Header header =
      HeaderReader(begin, file_size, errors).read(bytes.subspan(kLengthBytes, begin - kLengthBytes));
  std::stable_sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  check_coverage(header.tensors, begin, file_size, errors);
  return header;
}

std::string render_header(std::vector<StoredTensor>& tensors, const Metadata& metadata) {
  const FileErrors errors("a file to be written");
  Json json = Json::object();
  if (!metadata.empty()) json[kMetadataKey] = metadata;
  // Appended as to a vector, since a look-up goes through all members.
  std::vector<std::pair<const std::string, Json>>& members = json.get_ref<Json::object_t&>();
  std::set<std::string> names{kMetadataKey};
  std::uint64_t end = 0;
  for (StoredTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second)
      errors.reject_tensor(tensor.name, "is there twice, or has the name of the metadata",
                           "give every tensor a name of its own");
    if (item_size(tensor.dtype) == 0)
      errors.reject_tensor(tensor.name, "has the unknown type " + in_quotes(tensor.dtype), "convert it");
    tensor.begin = end;
    tensor.end = end += byte_count(tensor, errors);
    members.emplace_back(
        tensor.name,
        Json{{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, tensor.end}}});
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

}  // namespace meshtorch::safetensors::internal

// The file .metadata of torch.distributed.checkpoint: objects of Python, of which the fields are looked up.
#include "checkpoint/plan/dcp_metadata.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "checkpoint/plan/pickle.h"
#include "core/shallow_json.h"
#include "safetensors/input_file.h"

namespace meshtorch::checkpoint::internal {
namespace {

using Kind = Pickled::Kind;

// Objects may share their parts: what a small file stands for is bounded all the same.
constexpr std::size_t kMaxChunks = 10'000'000;

class MetadataReader {
 public:
  explicit MetadataReader(const std::string& path) : path_(path) {}

  DcpMetadata read(const Pickled& root) {
    read_places(field(root, "storage_data", Kind::dict));
    DcpMetadata metadata;
    const Pickled& entries = field(root, "state_dict_metadata", Kind::dict);
    for (std::size_t i = 0; i < entries.items.size(); i += 2) {
      const std::string& name = as(*entries.items[i], Kind::text, "a name").text;
      const Pickled& entry = as(*entries.items[i + 1], Kind::object, in_quotes(name));
      if (entry.text.ends_with(".BytesStorageMetadata")) {
        metadata.others.push_back(name);
      } else if (!metadata.tensors.emplace(name, tensor_of(entry, name)).second) {
        fail(in_quotes(name) + " is there twice");
      }
    }
    return metadata;
  }

 private:
  struct Place {
    std::string file;
    std::uint64_t begin = 0;
    std::uint64_t length = 0;
  };

  [[noreturn]] void fail(const std::string& what) const {
    throw std::invalid_argument("meshtorch: the metadata are not understood: " + what + "\n  in: " + path_ +
                                "\n  do: give a folder that torch.distributed.checkpoint wrote");
  }

  const Pickled& as(const Pickled& value, Kind kind, const std::string& what) const {
    if (value.kind != kind) fail(what + " has another type");
    return value;
  }
  const Pickled& field(const Pickled& object, std::string_view name, Kind kind) const {
    const Pickled* found = object.find(name);
    if (found == nullptr) fail("a field \"" + std::string(name) + "\" is missing");
    return as(*found, kind, "\"" + std::string(name) + "\"");
  }
  std::uint64_t count(const Pickled& object, std::string_view name) const {
    const std::int64_t value = field(object, name, Kind::integer).integer;
    if (value < 0) fail("\"" + std::string(name) + "\" is " + std::to_string(value));
    return static_cast<std::uint64_t>(value);
  }

  // torch.Size is an object made of a tuple.
  Shape size(const Pickled& value) const {
    const Pickled* list = &value;
    if (list->kind == Kind::object && list->items.size() == 1) list = list->items[0];
    Shape shape;
    for (const Pickled* item : as(*list, Kind::list, "a size").items) {
      shape.push_back(as(*item, Kind::integer, "a size").integer);
      if (shape.back() < 0) fail("a size is " + std::to_string(shape.back()));
    }
    return shape;
  }
  Shape size(const Pickled& object, std::string_view name) const {
    const Pickled* found = object.find(name);
    if (found == nullptr) fail("a field \"" + std::string(name) + "\" is missing");
    return size(*found);
  }

  // Where each chunk lies, by its tensor and where it begins there.
  void read_places(const Pickled& storage) {
    for (std::size_t i = 0; i < storage.items.size(); i += 2) {
      const Pickled& index = as(*storage.items[i], Kind::object, "an index");
      const Pickled& info = as(*storage.items[i + 1], Kind::object, "a place");
      const Pickled* offset = index.find("offset");
      if (offset == nullptr || offset->kind == Kind::none) continue;  // no tensor
      const Pickled* transforms = info.find("transform_descriptors");
      if (transforms != nullptr && transforms->kind != Kind::none && !transforms->items.empty())
        fail("its tensors are compressed, or changed otherwise");
      Place place{field(info, "relative_path", Kind::text).text, count(info, "offset"),
                  count(info, "length")};
      if (!safetensors::internal::is_name_beside(place.file))
        fail("it names the file " + in_quotes(place.file));
      places_[{field(index, "fqn", Kind::text).text, size(*offset)}] = std::move(place);
    }
  }

  DcpTensor tensor_of(const Pickled& entry, const std::string& name) {
    DcpTensor tensor;
    tensor.dtype = dtype_of(entry);
    tensor.shape = size(entry, "size");
    for (const Pickled* item : field(entry, "chunks", Kind::list).items) {
      if (++chunks_ > kMaxChunks) fail("it has more than " + std::to_string(kMaxChunks) + " chunks");
      DcpChunk chunk = chunk_of(*item, name);
      if (std::ranges::find(chunk.box.sizes, 0) == chunk.box.sizes.end())
        tensor.chunks.push_back(std::move(chunk));
    }
    std::vector<Box> boxes;
    for (const DcpChunk& chunk : tensor.chunks) boxes.push_back(chunk.box);
    if (const std::string words = unfit_chunks(tensor.shape, boxes); !words.empty())
      fail("tensor " + in_quotes(name) + " " + words);
    return tensor;
  }

  std::string dtype_of(const Pickled& entry) const {
    const Pickled& properties = field(entry, "properties", Kind::object);
    // Its state is a tuple that begins with the type, or in old folders a dict.
    const Pickled* type = properties.find("dtype");
    if (type == nullptr && properties.state != nullptr && !properties.state->items.empty())
      type = properties.state->items[0];
    if (type == nullptr || type->kind != Kind::global || !type->text.starts_with("torch."))
      fail("a tensor has no type");
    return type->text.substr(std::string_view("torch.").size());
  }

  DcpChunk chunk_of(const Pickled& item, const std::string& name) const {
    Box box{size(item, "offsets"), size(item, "sizes")};
    const auto place = places_.find({name, box.offsets});
    if (place == places_.end()) fail("a chunk of " + in_quotes(name) + " has no place in a file");
    return {std::move(box), place->second.file, place->second.begin, place->second.length};
  }

  const std::string& path_;
  std::map<std::pair<std::string, Shape>, Place> places_;
  std::size_t chunks_ = 0;
};

}  // namespace

DcpMetadata DcpMetadata::from_bytes(const std::string& path, std::string_view bytes) {
  const Pickle pickle = read_pickle(path, bytes);
  return MetadataReader(path).read(*pickle.root);
}

}  // namespace meshtorch::checkpoint::internal

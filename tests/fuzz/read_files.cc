// Safetensors files and indexes of models, as files: their readers open them by name.
#include <sys/mman.h>
#include <unistd.h>

#include "folder.h"
#include "safetensors/model_files.h"

namespace meshtorch::fuzz {
namespace {

// Bytes under the name of a file.
class MemoryFile {
 public:
  explicit MemoryFile(const std::string& bytes) : file_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    require(::write(file_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()), "no memory");
  }
  ~MemoryFile() { ::close(file_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }

 private:
  int file_;
};

}  // namespace

void read_safetensors(const std::string& bytes) {
  const MemoryFile memory(bytes);
  const safetensors::internal::OpenFile file(memory.path());
  for (const safetensors::internal::StoredTensor& tensor : file.header.tensors) {
    require(file.find(tensor.name) != nullptr, "a tensor is not found by its name");
    require(tensor.begin <= tensor.end && tensor.end <= bytes.size(), "a tensor lies outside the file");
    std::vector<std::vector<internal::Range>> whole;
    for (const std::int64_t size : tensor.shape) whole.push_back({{0, size}});
    std::vector<std::byte> values(tensor.end - tensor.begin);
    const auto count =
        static_cast<std::int64_t>(values.size() / safetensors::internal::item_size(tensor.dtype));
    const internal::ShardIndices all(tensor.shape, whole);
    require(all.count() == count, "a shape and its bytes differ");
    file.read(tensor, all, 0, count, values.data());
  }
}

void read_model_index(const std::string& text) {
  // A model of two files.
  static const Folder folder;
  static const bool is_made = [] {
    const auto write = [](const char* file, std::vector<safetensors::internal::StoredTensor> tensors) {
      const std::string header = safetensors::internal::render_header(tensors, {});
      folder.write(file, header + std::string(tensors.size(), 'x'));
    };
    write("one.safetensors", {{"a", "U8", {1}}, {"b", "U8", {1}}});
    write("two.safetensors", {{"c", "U8", {1}}});
    return true;
  }();
  require(is_made, "no model");
  folder.write("model.safetensors.index.json", text);
  const safetensors::internal::ModelFiles files(folder.path());
  require(!files.names.empty() && files.names.size() == files.tensors.size(), "a tensor is there twice");
}

}  // namespace meshtorch::fuzz

// A plain Hugging Face checkpoint: all ranks write their shards into the same files, tensor by tensor.
#include <ATen/ATen.h>
#include <fcntl.h>
#include <torch/nn/module.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "backends/wire.h"
#include "checkpoint/gather.h"
#include "checkpoint/held_tensors.h"
#include "checkpoint/slab.h"
#include "core/shard_indices.h"
#include "meshtorch/checkpoint.h"
#include "safetensors/atomic_file.h"
#include "safetensors/file_error.h"
#include "safetensors/header.h"

namespace meshtorch::checkpoint {
using namespace internal;
namespace {

namespace fs = std::filesystem;
using safetensors::internal::StoredTensor;

// One file of the model: its tensors, and its first bytes.
struct ModelFile {
  std::string name;
  std::vector<StoredTensor> tensors;
  std::string header;

  std::uint64_t size() const { return tensors.empty() ? header.size() : tensors.back().end; }
};

std::string file_name(std::size_t number, std::size_t count) {
  if (count == 1) return "model.safetensors";
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", number + 1, count);
  return name;
}

// "model-00001-of-00002.safetensors"
bool is_numbered(const std::string& name) {
  int end = 0;
  std::sscanf(name.c_str(), "model-%*5d-of-%*5d.safetensors%n", &end);
  return end > 0 && static_cast<std::size_t>(end) == name.size();
}

// The tensors in order, a new file where the next one would make it too large.
std::vector<ModelFile> split_into_files(const std::vector<Holding>& tensors, std::uint64_t max_bytes) {
  std::vector<ModelFile> files(1);
  std::uint64_t bytes = 0;
  for (const Holding& tensor : tensors) {
    const auto count = static_cast<std::uint64_t>(Box{tensor.shape, tensor.shape}.count());
    const std::uint64_t size = count * safetensors::internal::item_size(tensor.dtype);
    if (!files.back().tensors.empty() && bytes + size > max_bytes) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().tensors.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape});
    bytes += size;
  }
  for (std::size_t i = 0; i < files.size(); ++i) {
    files[i].name = file_name(i, files.size());
    files[i].header = safetensors::internal::render_header(files[i].tensors, {{"format", "pt"}});
  }
  return files;
}

// A file that several ranks write at their own places.
class SharedFile {
 public:
  SharedFile(const std::string& path, int flags)
      : path_(path), file_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {
    if (file_ < 0) throw safetensors::internal::file_error("cannot open", path, errno);
  }
  ~SharedFile() { ::close(file_); }
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  void write(std::span<const std::byte> bytes, std::uint64_t offset) {
    safetensors::internal::write_all(file_, path_, bytes, offset);
  }
  void resize(std::uint64_t size) {
    if (::ftruncate(file_, static_cast<off_t>(size)) != 0)
      throw safetensors::internal::file_error("cannot resize", path_, errno);
  }
  void sync() { safetensors::internal::sync_file(file_, path_); }

 private:
  std::string path_;
  int file_;
};

std::vector<std::vector<Range>> ranges_of(const Box& box) {
  std::vector<std::vector<Range>> ranges;
  for (std::size_t dim = 0; dim < box.sizes.size(); ++dim)
    ranges.push_back({{box.offsets[dim], box.sizes[dim]}});
  return ranges;
}

void write_box(SharedFile& file, const StoredTensor& tensor, const Box& box, const at::Tensor& values) {
  const ShardIndices places(tensor.shape, ranges_of(box));
  const auto item = static_cast<std::int64_t>(safetensors::internal::item_size(tensor.dtype));
  for_each_slab(values, [&](const at::Tensor& slab, std::int64_t begin) {
    const at::Tensor in_order = meshtorch::internal::readable(slab.cpu());
    const auto* bytes = static_cast<const std::byte*>(in_order.const_data_ptr());
    places.visit_runs(begin, begin + slab.numel(), [&](std::int64_t first, std::int64_t length) {
      const auto count = static_cast<std::size_t>(length * item);
      file.write({bytes, count}, tensor.begin + static_cast<std::uint64_t>(first * item));
      bytes += count;
    });
  });
}

// The steps of an export, each of which all ranks take together.
class Export {
 public:
  Export(const std::string& directory, const NamedTensors& tensors, const ExportOptions& options)
      : directory_(directory), gather_(gather_by_collective()) {
    std::optional<HeldTensors> held;
    const std::vector<Json> all = run_together(gather_, [&] {
      held.emplace(tensors);
      return held->to_json();
    });
    held_ = std::move(held);
    std::vector<std::vector<Holding>> holdings;
    for (const Json& json : all) holdings.push_back(holdings_from(json));
    as_value_error([&] {
      assignment_ = assign(holdings);
      files_ = split_into_files(holdings[0], options.max_file_bytes);
    });
  }

  void run(const std::string& config_json) {
    together_on_rank_0([&] { begin(); });
    run_together(gather_, [&]() -> Json {
      for (const ModelFile& file : files_) write_own_boxes(file);
      return nullptr;
    });
    together_on_rank_0([&] { finish(config_json); });
  }

 private:
  std::string path_of(const std::string& file) const { return (fs::path(directory_) / file).string(); }
  std::string unfinished(const ModelFile& file) const {
    return safetensors::internal::temporary_name(path_of(file.name));
  }

  void together_on_rank_0(const std::function<void()>& act) {
    run_together(gather_, [&]() -> Json {
      if (this_rank() == 0) act();
      return nullptr;
    });
  }

  // Files of the full size, with nothing but headers.
  void begin() {
    safetensors::internal::make_directory(directory_);
    for (const ModelFile& file : files_) {
      SharedFile made(unfinished(file), O_WRONLY | O_CREAT | O_TRUNC);
      made.resize(file.size());
      made.write(std::as_bytes(std::span(file.header)), 0);
    }
  }

  void write_own_boxes(const ModelFile& file) const {
    SharedFile shared(unfinished(file), O_WRONLY);
    for (const StoredTensor& tensor : file.tensors) {
      for (const OwnedBox& owned : assignment_.at(tensor.name).boxes) {
        if (owned.owner == this_rank())
          write_box(shared, tensor, owned.box, held_->part(tensor.name, owned.box));
      }
    }
    shared.sync();
  }

  void write_text(const std::string& name, const std::string& text) const {
    safetensors::internal::AtomicFile file(path_of(name));
    file.append(text);
    file.commit();
  }

  void finish(const std::string& config_json) const {
    Json index{{"metadata", {{"total_size", 0}}}, {"weight_map", Json::object()}};
    std::uint64_t total = 0;
    for (const ModelFile& file : files_) {
      safetensors::internal::publish(unfinished(file), path_of(file.name));
      total += file.size() - file.header.size();
      for (const StoredTensor& tensor : file.tensors) index["weight_map"][tensor.name] = file.name;
    }
    index["metadata"]["total_size"] = total;
    if (files_.size() > 1) write_text("model.safetensors.index.json", index.dump(2) + "\n");
    write_text("config.json", config_json);
    remove_older_model();
  }

  // Model files that this export did not write would be mistaken for it.
  void remove_older_model() const {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(directory_, ignored)) {
      const std::string name = entry.path().filename().string();
      const bool is_model = name == "model.safetensors" || is_numbered(name);
      const bool is_ours =
          std::any_of(files_.begin(), files_.end(), [&](const auto& f) { return f.name == name; });
      if (is_model && !is_ours) fs::remove(entry.path(), ignored);
    }
    if (files_.size() == 1) fs::remove(path_of("model.safetensors.index.json"), ignored);
  }

  std::string directory_;
  Gather gather_;
  std::optional<HeldTensors> held_;
  Assignment assignment_;
  std::vector<ModelFile> files_;
};

}  // namespace

void export_hf(const std::string& directory, const NamedTensors& tensors, const std::string& config_json,
               const ExportOptions& options) {
  NamedTensors named;
  for (const auto& [name, tensor] : tensors) {
    const std::string in_files = options.name_in_files ? options.name_in_files(name) : name;
    if (!in_files.empty()) named.emplace_back(in_files, tensor);
  }
  Export(directory, named, options).run(config_json);
}

void export_hf(const std::string& directory, torch::nn::Module& module, const std::string& config_json,
               const ExportOptions& options) {
  NamedTensors tensors;
  for (const ModuleTensor& tensor : tensors_of(module))
    tensors.emplace_back(tensor.names.front(), tensor.tensor);
  export_hf(directory, tensors, config_json, options);
}

}  // namespace meshtorch::checkpoint

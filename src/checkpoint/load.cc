// Loading a state: each rank finds the chunks that meet its shards, and reads what they have in common.
#include <ATen/ATen.h>

#include <filesystem>
#include <set>

#include "checkpoint/fill.h"
#include "checkpoint/gather.h"
#include "checkpoint/latest_save.h"
#include "checkpoint/module_tensors.h"
#include "checkpoint/section.h"
#include "meshtorch/checkpoint.h"

namespace meshtorch::checkpoint {
using namespace internal;
namespace {

namespace fs = std::filesystem;

std::string read_index(const std::string& directory) {
  const std::string path = index_path(directory);
  TORCH_CHECK_VALUE(fs::exists(path),
                    "meshtorch: there is no checkpoint, that is no checkpoint.json\n  in: ", directory,
                    "\n  do: name the directory that save() wrote");
  std::string text;
  as_value_error([&] { text = safetensors::internal::InputFile(path).text(); });
  return text;
}

// What a section of the state gets from a checkpoint.
struct Delivery {
  std::shared_ptr<Section> section;
  NamedTensors targets;
};

void check_names(const Delivery& delivery, const Index& index, const std::string& path) {
  std::set<std::string> wanted;
  for (const auto& [name, tensor] : delivery.targets) {
    wanted.insert(name);
    const auto stored = index.tensors.find(name);
    TORCH_CHECK_VALUE(stored != index.tensors.end(), "meshtorch: the checkpoint has no tensor \"", name,
                      "\"\n  in: ", path, "\n  do: load it into the state that was saved");
    TORCH_CHECK_VALUE(tensor.sizes() == c10::IntArrayRef(stored->second.shape), "meshtorch: tensor \"", name,
                      "\" has the shape ", c10::IntArrayRef(stored->second.shape), " in the checkpoint, and ",
                      tensor.sizes(), " in memory\n  in: ", path,
                      "\n  do: build the state with the sizes that were saved");
    check_whole(tensor, name);
  }
  const std::string prefix = delivery.section->name() + ".";
  for (const auto& [name, tensor] : index.tensors) {
    TORCH_CHECK_VALUE(
        !name.starts_with(prefix) || wanted.contains(name), "meshtorch: the checkpoint has a tensor \"", name,
        "\" that the state has not\n  in: ", path, "\n  do: load it into the state that was saved");
  }
}

// Finds where everything goes, and changes nothing.
std::vector<Delivery> plan(const State& state, const Index& index, const std::string& path) {
  std::vector<Delivery> deliveries;
  for (const auto& section : StateAccess::sections(state)) {
    const std::string& name = section->name();
    TORCH_CHECK_VALUE(index.values.contains(name), "meshtorch: the checkpoint has no part \"", name,
                      "\"\n  in: ", path, "\n  do: load it into the state that was saved");
    deliveries.push_back({section, section->targets(index.values.at(name))});
    check_names(deliveries.back(), index, path);
  }
  return deliveries;
}

// The data files of a checkpoint, opened when they are needed.
class DataFiles {
 public:
  DataFiles(const std::string& directory, const Index& index) : directory_(directory), index_(index) {}

  void fill(const at::Tensor& target, const std::string& name) {
    fill_shards(target, [&](const Shards& shards) { fill(shards, name); });
  }

 private:
  void fill(const Shards& shards, const std::string& name) {
    for (const Chunk& chunk : index_.tensors.at(name).chunks) {
      const Overlap overlap = overlap_of(shards.held, chunk.box);
      if (overlap.local.count() == 0) continue;
      const safetensors::internal::OpenFile& file = open(chunk.file);
      const safetensors::internal::StoredTensor& stored = find(file, chunk_name(name, chunk.box), chunk.box);
      safetensors::internal::fill(view_of(shards.local, overlap.local), file, stored,
                                  ShardIndices(chunk.box.sizes, overlap.inside));
    }
  }

  const safetensors::internal::OpenFile& open(const std::string& name) {
    auto& file = files_[name];
    if (!file) {
      const std::string path = (fs::path(directory_) / name).string();
      file = std::make_unique<safetensors::internal::OpenFile>(path, index_.files.at(name).checksums);
    }
    return *file;
  }

  static const safetensors::internal::StoredTensor& find(const safetensors::internal::OpenFile& file,
                                                         const std::string& name, const Box& box) {
    const safetensors::internal::StoredTensor* tensor = file.find(name);
    TORCH_CHECK_VALUE(tensor != nullptr && tensor->shape == box.sizes, "meshtorch: the file has no chunk \"",
                      name, "\"\n  in: ", file.file.path(),
                      "\n  do: load another checkpoint; this one is damaged");
    return *tensor;
  }

  const std::string& directory_;
  const Index& index_;
  std::map<std::string, std::unique_ptr<safetensors::internal::OpenFile>> files_;
};

}  // namespace

bool exists(const std::string& directory) { return fs::exists(index_path(directory)); }

void load(const std::string& directory, const State& state) {
  finish_latest_save();
  const Gather gather = gather_by_collective();
  // One rank reads the index: a save that ends meanwhile cannot give the ranks two different ones.
  const std::string text =
      run_together(gather,
                   [&]() -> Json { return this_rank() == 0 ? Json(read_index(directory)) : Json(); })[0]
          .get<std::string>();
  Index index;
  as_value_error([&] { index = Index::from_text(index_path(directory), text); });
  std::vector<Delivery> deliveries;
  run_together(gather, [&]() -> Json {
    deliveries = plan(state, index, index_path(directory));
    return nullptr;
  });
  run_together(gather, [&]() -> Json {
    DataFiles files(directory, index);
    as_value_error([&] {
      for (const Delivery& delivery : deliveries) {
        for (const auto& [name, target] : delivery.targets) files.fill(target, name);
      }
    });
    return nullptr;
  });
  for (const Delivery& delivery : deliveries)
    delivery.section->accept(index.values.at(delivery.section->name()));
}

}  // namespace meshtorch::checkpoint

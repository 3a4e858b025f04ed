// Checkpoints: the state of a training run in a directory, written by all ranks together and loaded on any
// mesh.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "meshtorch/api.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace meshtorch::checkpoint {

namespace internal {
class Section;
struct StateAccess;
}  // namespace internal

// What is saved and loaded, by name. It refers to the objects, which must outlive it: save() reads them,
// load() changes them in place. Every rank adds the same.
class MESHTORCH_API State {
 public:
  // Parameters and buffers, distributed or plain. A tensor that has several names is stored once.
  State& add(const std::string& name, torch::nn::Module& module);
  // SGD, Adam, AdamW, RMSprop or Adagrad: options of the groups, and the state of each parameter by its name
  // in the module.
  State& add(const std::string& name, torch::optim::Optimizer& optimizer, torch::nn::Module& module);
  State& add(const std::string& name, const at::Tensor& tensor);
  // Equal on every rank.
  State& add(const std::string& name, std::int64_t& value);
  State& add(const std::string& name, double& value);
  State& add(const std::string& name, bool& value);
  State& add(const std::string& name, std::string& value);
  // Where the random numbers of distributed tensors stand (RngState).
  State& add_random();

 private:
  friend struct internal::StateAccess;
  State& add(std::shared_ptr<internal::Section> section);
  std::vector<std::shared_ptr<internal::Section>> sections_;
};

// Writes a checkpoint; to be called by all ranks. Each rank writes what it holds, and what several hold one
// of them does. Until all of it is on the disk the directory keeps the checkpoint that it had, and a kill at
// any moment leaves the old one or the new one. If one rank fails, all throw. A pending reduction is saved
// reduced.
MESHTORCH_API void save(const std::string& directory, const State& state);

// A save that goes on in the background.
class MESHTORCH_API AsyncSave {
 public:
  explicit AsyncSave(std::shared_future<void> done, std::shared_ptr<std::atomic<bool>> is_reported)
      : done_(std::move(done)), is_reported_(std::move(is_reported)) {}

  // Blocks until the checkpoint is complete. Throws what went wrong, on any rank.
  void wait();
  bool is_done() const;

 private:
  std::shared_future<void> done_;
  std::shared_ptr<std::atomic<bool>> is_reported_;
};

// As save(), but returns when this rank's part is copied: the state may change at once. An error that nobody
// waited for is thrown by the next save. The calling thread joins the save when it exits.
MESHTORCH_API AsyncSave save_async(const std::string& directory, const State& state);

// Loads a checkpoint that any number of ranks wrote, on any mesh; to be called by all ranks. Each rank reads
// what it holds, and checks what it reads. Of what the checkpoint has, only what `state` names is loaded, and
// all that `state` names must be there. Nothing is changed unless everything fits; if one rank fails, all
// throw. A tensor on the meta device is given memory first.
MESHTORCH_API void load(const std::string& directory, const State& state);

// Whether the directory has a complete checkpoint.
MESHTORCH_API bool exists(const std::string& directory);

// What export_hf writes under which names, and how large its files may be.
struct ExportOptions {
  // The tensors go to several files, with an index, if one would be larger.
  std::uint64_t max_file_bytes = 5'000'000'000;
  // The name in the files of each tensor. Default: the same. An empty name leaves it out.
  std::function<std::string(const std::string& name)> name_in_files = {};
};

// Writes a plain Hugging Face checkpoint: model.safetensors, or several files and
// model.safetensors.index.json, and config.json with the given text. To be called by all ranks: each writes
// what it holds, and none needs more memory than that.
MESHTORCH_API void export_hf(const std::string& directory, torch::nn::Module& module,
                             const std::string& config_json, const ExportOptions& options = {});
MESHTORCH_API void export_hf(const std::string& directory,
                             const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                             const std::string& config_json, const ExportOptions& options = {});

}  // namespace meshtorch::checkpoint

// Folders that Python's torch.distributed.checkpoint wrote: each rank reads the chunks that meet its shards.
// Nothing here communicates: all ranks see the same files, and so fail alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "meshtorch/api.h"
#include "meshtorch/safetensors.h"

namespace meshtorch::dcp {

using safetensors::LoadOptions;
using safetensors::LoadReport;

// The type and global shape of a tensor in a folder.
struct Entry {
  at::ScalarType dtype;
  std::vector<std::int64_t> shape;
};

// The tensors of a folder, whatever mesh they were saved from. A handle; copies share what it has read.
class MESHTORCH_API Folder {
 public:
  // Reads the file .metadata, as data: nothing that it names is called. Throws ValueError that names the file
  // if something is wrong.
  explicit Folder(const std::string& path);

  // Nested dicts are flat here: "model.layers.0.weight".
  const std::vector<std::string>& names() const;
  // Values that are no tensors; they cannot be read from C++.
  const std::vector<std::string>& other_names() const;
  // Null if there is no such tensor.
  const Entry* find(const std::string& name) const;
  // Throws ValueError if there is no such tensor.
  const Entry& at(const std::string& name) const;
  const std::string& path() const;

  // A new tensor on the CPU.
  at::Tensor read(const std::string& name) const;

 private:
  struct Impl;
  friend void load_into(const at::Tensor& target, const Folder& folder, const std::string& name);
  std::shared_ptr<const Impl> impl_;
};

// Fills a plain or distributed tensor of the same shape in place, converted to its type. A target on the meta
// device is given memory first.
MESHTORCH_API void load_into(const at::Tensor& target, const Folder& folder, const std::string& name);

// Loads all parameters and buffers of a module, as safetensors::load_parameters does.
MESHTORCH_API LoadReport load_parameters(torch::nn::Module& module, const Folder& folder,
                                         const LoadOptions& options = {});

}  // namespace meshtorch::dcp

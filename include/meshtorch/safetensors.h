// Tensors in safetensors files, the format of Hugging Face: each rank maps the files and reads the bytes of
// its shards only. Nothing here communicates: all ranks see the same files, and so fail alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "meshtorch/api.h"

namespace torch::nn {
class Module;
}

namespace meshtorch::safetensors {

// Texts that a file holds beside its tensors.
using Metadata = std::map<std::string, std::string>;
// Tensors with their names, in order.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Where a tensor lies: bytes [begin, end) of a file.
struct Entry {
  at::ScalarType dtype;
  std::vector<std::int64_t> shape;
  std::string file;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// The tensors of one .safetensors file, or of a directory with model.safetensors or
// model.safetensors.index.json and the files that it names. A handle; copies share the maps.
class MESHTORCH_API Files {
 public:
  // Checks everything but the values. Throws ValueError that names file and tensor if something is wrong.
  explicit Files(const std::string& path);

  // In the order of the files and of their bytes.
  const std::vector<std::string>& names() const;
  // Null if there is no such tensor.
  const Entry* find(const std::string& name) const;
  // Throws ValueError if there is no such tensor.
  const Entry& at(const std::string& name) const;
  // What the files say of themselves.
  const Metadata& metadata() const;

  // A new tensor on the CPU: all of it, or the part that begins at `offsets` and has `sizes`. Only the bytes
  // of the part are read.
  at::Tensor read(const std::string& name) const;
  at::Tensor read(const std::string& name, const std::vector<std::int64_t>& offsets,
                  const std::vector<std::int64_t>& sizes) const;

 private:
  struct Impl;
  friend void load_into(const at::Tensor& target, const Files& files, const std::string& name);
  std::shared_ptr<const Impl> impl_;
};

// Writes plain tensors to one file, which appears only when it is complete and on the disk. To be called by
// one rank.
MESHTORCH_API void write(const std::string& path, const NamedTensors& tensors, const Metadata& metadata = {});

// Fills a plain or distributed tensor of the same shape in place, converted to its type. Of a distributed
// tensor each rank reads its own shard. A target on the meta device is given memory first.
MESHTORCH_API void load_into(const at::Tensor& target, const Files& files, const std::string& name);

// How tensors of files are matched with those of a module.
struct LoadOptions {
  // A tensor that the files lack, or that the module lacks, is an error. Else both are only reported.
  bool strict = true;
  // The name in the files of a parameter or buffer of the module. Default: the same. An empty name leaves
  // the tensor as it is.
  std::function<std::string(const std::string& name)> name_in_files = {};
};

// Tensors that had no counterpart.
struct LoadReport {
  std::vector<std::string> missing;     // in the files, by the module's names
  std::vector<std::string> unexpected;  // in the module, by the files' names
};

// Loads all parameters and buffers of a module. Names and shapes are checked before anything is read. A
// tensor that the module has under several names is loaded if the files have one of them.
MESHTORCH_API LoadReport load_parameters(torch::nn::Module& module, const Files& files,
                                         const LoadOptions& options = {});

}  // namespace meshtorch::safetensors

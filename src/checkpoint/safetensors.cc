// Tensors in safetensors files: what a path holds, reading parts of it, and writing one file.
#include "meshtorch/safetensors.h"

#include <ATen/ATen.h>

#include "backends/pending.h"
#include "backends/wire.h"
#include "checkpoint/dtype.h"
#include "checkpoint/files_impl.h"
#include "checkpoint/fill.h"
#include "meshtorch/dtensor.h"
#include "runtime/host_tensor.h"
#include "safetensors/atomic_file.h"

namespace meshtorch::safetensors {
using namespace internal;
namespace {

ModelFiles open(const std::string& path) {
  try {
    return ModelFiles(path);
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, error.what());
  } catch (const std::exception& error) {
    TORCH_CHECK(false, error.what());
  }
}

}  // namespace

Files::Impl::Impl(const std::string& path) : files(open(path)) {
  for (const auto& [name, located] : files.tensors) {
    const StoredTensor& tensor = *located.tensor;
    entries[name] = {.dtype = dtype_named(tensor.dtype),
                     .shape = tensor.shape,
                     .file = located.file->file.path(),
                     .begin = tensor.begin,
                     .end = tensor.end};
  }
}

Files::Files(const std::string& path) : impl_(std::make_shared<Impl>(path)) {}

const std::vector<std::string>& Files::names() const { return impl_->files.names; }
const Metadata& Files::metadata() const { return impl_->files.metadata; }

const Entry* Files::find(const std::string& name) const {
  const auto found = impl_->entries.find(name);
  return found == impl_->entries.end() ? nullptr : &found->second;
}

const Entry& Files::at(const std::string& name) const {
  const Entry* entry = find(name);
  TORCH_CHECK_VALUE(entry, "meshtorch: there is no tensor \"", name, "\" among ", names().size(),
                    "\n  in: ", impl_->files.files.front()->file.path(),
                    impl_->files.files.size() > 1 ? ", …" : "", "\n  do: use one of names()");
  return *entry;
}

at::Tensor Files::read(const std::string& name) const {
  const Entry& entry = at(name);
  return read(name, std::vector<std::int64_t>(entry.shape.size()), entry.shape);
}

at::Tensor Files::read(const std::string& name, const std::vector<std::int64_t>& offsets,
                       const std::vector<std::int64_t>& sizes) const {
  const Entry& entry = at(name);
  bool fits = offsets.size() == entry.shape.size() && sizes.size() == entry.shape.size();
  std::vector<std::vector<Range>> part;
  for (std::size_t dim = 0; fits && dim < entry.shape.size(); ++dim) {
    fits = offsets[dim] >= 0 && sizes[dim] >= 0 && offsets[dim] <= entry.shape[dim] - sizes[dim];
    part.push_back({{offsets[dim], sizes[dim]}});
  }
  TORCH_CHECK_VALUE(fits, "meshtorch: the part at ", c10::IntArrayRef(offsets), " of sizes ",
                    c10::IntArrayRef(sizes), " is not inside tensor \"", name, "\" of shape ",
                    c10::IntArrayRef(entry.shape), "\n  in: ", entry.file,
                    "\n  do: give an offset and a size for each dim, inside the shape");
  const at::Tensor values = at::empty(sizes, on_host(entry.dtype));
  const auto& [file, tensor] = impl_->files.tensors.at(name);
  fill(values, *file, *tensor, ShardIndices(entry.shape, std::move(part)));
  return values;
}

void write(const std::string& path, const NamedTensors& tensors, const Metadata& metadata) {
  std::vector<StoredTensor> stored;
  for (const auto& [name, tensor] : tensors) {
    TORCH_CHECK_VALUE(tensor.defined() && !is_dtensor(tensor), "meshtorch: tensor \"", name, "\" is ",
                      tensor.defined() ? "distributed" : "undefined", ", and one rank writes plain tensors",
                      "\n  in: ", path, "\n  do: use checkpoint::save or checkpoint::export_hf");
    stored.push_back(
        {.name = name, .dtype = dtype_name(tensor.scalar_type(), name), .shape = tensor.sizes().vec()});
  }
  std::string header;
  try {
    header = render_header(stored, metadata);
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
  try {
    AtomicFile file(path);
    file.append(header);
    for (const auto& [name, tensor] : tensors) {
      wait_pending(tensor);
      const at::Tensor values = meshtorch::internal::readable(tensor.detach().cpu());
      file.append({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
    }
    file.commit();
  } catch (const std::runtime_error& error) {
    TORCH_CHECK(false, error.what());
  }
}

}  // namespace meshtorch::safetensors

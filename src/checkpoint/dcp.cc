// Folders of torch.distributed.checkpoint: a chunk is what torch.save writes of a tensor, in the middle of a
// file.
#include "meshtorch/dcp.h"

#include <ATen/ATen.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>

#include "checkpoint/gather.h"
#include "checkpoint/load_parameters.h"
#include "checkpoint/module_tensors.h"
#include "checkpoint/plan/dcp_metadata.h"
#include "runtime/host_tensor.h"
#include "safetensors/input_file.h"

namespace meshtorch::dcp {
using namespace checkpoint::internal;
namespace {

namespace fs = std::filesystem;
using safetensors::internal::InputFile;

// "float32" is at::kFloat.
at::ScalarType type_named(const std::string& name, const std::string& path) {
  constexpr std::array kTypes{std::pair{"bool", at::kBool},
                              std::pair{"uint8", at::kByte},
                              std::pair{"int8", at::kChar},
                              std::pair{"int16", at::kShort},
                              std::pair{"int32", at::kInt},
                              std::pair{"int64", at::kLong},
                              std::pair{"float16", at::kHalf},
                              std::pair{"bfloat16", at::kBFloat16},
                              std::pair{"float32", at::kFloat},
                              std::pair{"float64", at::kDouble},
                              std::pair{"complex64", at::kComplexFloat},
                              std::pair{"complex128", at::kComplexDouble}};
  const auto* found =
      std::ranges::find(kTypes, name, [](const auto& type) { return std::string(type.first); });
  TORCH_CHECK_NOT_IMPLEMENTED(found != kTypes.end(), "meshtorch: a tensor of the folder has the type ", name,
                              ", which LibTorch reads in Python only\n  in: ", path,
                              "\n  do: store it in another type");
  return found->second;
}

std::string metadata_path(const std::string& folder) { return (fs::path(folder) / ".metadata").string(); }

}  // namespace

struct Folder::Impl {
  explicit Impl(const std::string& folder) : path(folder) {
    const std::string file = metadata_path(folder);
    TORCH_CHECK_VALUE(fs::exists(file), "meshtorch: the folder has no file .metadata\n  in: ", folder,
                      "\n  do: give a folder that torch.distributed.checkpoint wrote");
    as_value_error([&] { metadata = DcpMetadata::from_bytes(file, InputFile(file).text()); });
    for (const auto& [name, tensor] : metadata.tensors) {
      names.push_back(name);
      entries[name] = {.dtype = type_named(tensor.dtype, file), .shape = tensor.shape};
    }
  }

  // The tensor of a chunk.
  at::Tensor read(const DcpChunk& chunk, const std::string& name) const {
    const std::string file = (fs::path(path) / chunk.file).string();
    std::vector<char> bytes;
    as_value_error([&] {
      const InputFile input(file);
      TORCH_CHECK_VALUE(chunk.length <= input.size(), "meshtorch: a chunk of \"", name, "\" has ",
                        chunk.length, " bytes, and its file ", input.size(), "\n  in: ", file,
                        "\n  do: load another checkpoint; this one is damaged");
      bytes.resize(chunk.length);
      input.read(chunk.begin, std::as_writable_bytes(std::span(bytes)));
    });
    at::Tensor tensor;
    std::string words = "it is no tensor of the shape and type that .metadata says";
    try {
      const c10::IValue value = torch::jit::pickle_load(bytes);
      if (value.isTensor() && value.toTensor().sizes() == c10::IntArrayRef(chunk.box.sizes) &&
          value.toTensor().scalar_type() == entries.at(name).dtype)
        tensor = value.toTensor();
    } catch (const c10::Error& error) {
      words = error.what_without_backtrace();
    }
    TORCH_CHECK_VALUE(tensor.defined(), "meshtorch: a chunk of \"", name, "\" cannot be read: ", words,
                      "\n  in: ", file, ", byte ", chunk.begin,
                      "\n  do: load another checkpoint; this one is damaged");
    return tensor;
  }

  std::string path;
  DcpMetadata metadata;
  std::vector<std::string> names;
  std::map<std::string, Entry> entries;
};

Folder::Folder(const std::string& path) : impl_(std::make_shared<Impl>(path)) {}

const std::vector<std::string>& Folder::names() const { return impl_->names; }
const std::vector<std::string>& Folder::other_names() const { return impl_->metadata.others; }

const Entry* Folder::find(const std::string& name) const {
  const auto found = impl_->entries.find(name);
  return found == impl_->entries.end() ? nullptr : &found->second;
}

const Entry& Folder::at(const std::string& name) const {
  const Entry* entry = find(name);
  TORCH_CHECK_VALUE(entry != nullptr, "meshtorch: there is no tensor \"", name, "\" among ", names().size(),
                    "\n  in: ", path(), "\n  do: use one of names()");
  return *entry;
}

const std::string& Folder::path() const { return impl_->path; }

at::Tensor Folder::read(const std::string& name) const {
  const Entry& entry = at(name);
  at::Tensor values = at::empty(entry.shape, on_host(entry.dtype));
  load_into(values, *this, name);
  return values;
}

void load_into(const at::Tensor& target, const Folder& folder, const std::string& name) {
  check_target(target, folder.at(name).shape, name, folder.path());
  const at::NoGradGuard no_grad;
  fill_shards(target, [&](const Shards& shards) {
    for (const DcpChunk& chunk : folder.impl_->metadata.tensors.at(name).chunks) {
      const Overlap overlap = overlap_of(shards.held, chunk.box);
      if (overlap.local.count() == 0) continue;
      at::Tensor values = folder.impl_->read(chunk, name);
      for (std::size_t dim = 0; dim < overlap.inside.size(); ++dim) {
        std::vector<at::Tensor> pieces;
        for (const Range& range : overlap.inside[dim])
          pieces.push_back(values.narrow(static_cast<std::int64_t>(dim), range.begin, range.size));
        values = pieces.size() == 1 ? pieces[0] : at::cat(pieces, static_cast<std::int64_t>(dim));
      }
      view_of(shards.local, overlap.local).copy_(values);
    }
  });
}

LoadReport load_parameters(torch::nn::Module& module, const Folder& folder, const LoadOptions& options) {
  const auto shape_of = [&](const std::string& name) {
    const Entry* entry = folder.find(name);
    return entry == nullptr ? nullptr : &entry->shape;
  };
  return checkpoint::internal::load_parameters(
      module,
      {.names = folder.names(),
       .path = folder.path(),
       .shape_of = shape_of,
       .fill = [&](const at::Tensor& target, const std::string& name) { load_into(target, folder, name); }},
      options);
}

}  // namespace meshtorch::dcp

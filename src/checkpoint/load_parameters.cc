// Loading modules from files of tensors, each rank its own shards.
#include "checkpoint/load_parameters.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <set>

#include "checkpoint/files_impl.h"
#include "checkpoint/fill.h"
#include "checkpoint/module_tensors.h"

namespace meshtorch::checkpoint::internal {
namespace {

using safetensors::LoadOptions;
using safetensors::LoadReport;

std::string list_of(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 10;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i) text += (i > 0 ? ", " : "") + names[i];
  return names.size() > kShown ? text + " and " + std::to_string(names.size() - kShown) + " more" : text;
}

struct Match {
  at::Tensor target;
  std::string name;
};

// Which tensor of the source goes where.
std::vector<Match> match(torch::nn::Module& module, const TensorSource& source, const LoadOptions& options,
                         LoadReport& report) {
  std::vector<Match> matches;
  std::set<std::string> used;
  for (const auto& tensor : tensors_of(module)) {
    std::string found;
    bool is_wanted = false;
    for (const std::string& name : tensor.names) {
      const std::string in_files = options.name_in_files ? options.name_in_files(name) : name;
      is_wanted = is_wanted || !in_files.empty();
      if (source.shape_of(in_files) == nullptr) continue;
      used.insert(in_files);
      if (found.empty()) found = in_files;
    }
    if (!found.empty()) {
      matches.push_back({tensor.tensor, found});
    } else if (is_wanted) {
      report.missing.push_back(tensor.names.front());
    }
  }
  for (const std::string& name : source.names) {
    if (!used.contains(name)) report.unexpected.push_back(name);
  }
  return matches;
}

}  // namespace

void check_target(const at::Tensor& target, const std::vector<std::int64_t>& shape, const std::string& name,
                  const std::string& path) {
  TORCH_CHECK_VALUE(target.sizes() == c10::IntArrayRef(shape), "meshtorch: tensor \"", name,
                    "\" has the shape ", c10::IntArrayRef(shape), " in the file, and ", target.sizes(),
                    " in memory\n  in: ", path, "\n  do: build the model with the sizes of the file");
  check_whole(target, name);
}

LoadReport load_parameters(torch::nn::Module& module, const TensorSource& source,
                           const LoadOptions& options) {
  LoadReport report;
  const std::vector<Match> matches = match(module, source, options, report);
  TORCH_CHECK_VALUE(!options.strict || (report.missing.empty() && report.unexpected.empty()),
                    "meshtorch: the files do not hold the tensors of the module\n  missing in the files: ",
                    report.missing.empty() ? "none" : list_of(report.missing), "\n  unknown to the module: ",
                    report.unexpected.empty() ? "none" : list_of(report.unexpected), "\n  in: ", source.path,
                    "\n  do: load the files of this model, give name_in_files, or set strict = false");
  for (const Match& m : matches) check_target(m.target, *source.shape_of(m.name), m.name, source.path);
  for (const Match& m : matches) source.fill(m.target, m.name);
  return report;
}

}  // namespace meshtorch::checkpoint::internal

namespace meshtorch::safetensors {
using namespace internal;

void load_into(const at::Tensor& target, const Files& files, const std::string& name) {
  const Entry& entry = files.at(name);
  checkpoint::internal::check_target(target, entry.shape, name, entry.file);
  const auto& stored = files.impl_->files.tensors.at(name);
  checkpoint::internal::fill_shards(target, [&](const checkpoint::internal::Shards& shards) {
    fill(shards.local, *stored.file, *stored.tensor, ShardIndices(entry.shape, shards.held));
  });
}

LoadReport load_parameters(torch::nn::Module& module, const Files& files, const LoadOptions& options) {
  const auto shape_of = [&](const std::string& name) {
    const Entry* entry = files.find(name);
    return entry == nullptr ? nullptr : &entry->shape;
  };
  return checkpoint::internal::load_parameters(
      module,
      {.names = files.names(),
       .path = files.names().empty() ? "no tensors" : files.at(files.names().front()).file,
       .shape_of = shape_of,
       .fill = [&](const at::Tensor& target, const std::string& name) { load_into(target, files, name); }},
      options);
}

}  // namespace meshtorch::safetensors

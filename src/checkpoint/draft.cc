// A checkpoint on its way to the disk. The files of a new one have names of their own; renaming the index is
// the commit; only then are the old files removed. So a kill at any moment leaves the old or the new
// checkpoint.
#include "checkpoint/draft.h"

#include <ATen/ATen.h>

#include <cstdio>
#include <filesystem>
#include <random>

#include "backends/wire.h"
#include "checkpoint/held_tensors.h"
#include "checkpoint/slab.h"
#include "safetensors/atomic_file.h"
#include "safetensors/header.h"

namespace meshtorch::checkpoint::internal {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFilePrefix = "data-";
constexpr const char* kFileEnding = ".safetensors";

bool is_data_file(const std::string& name) {
  return name.starts_with(kFilePrefix) &&
         (name.ends_with(kFileEnding) || name.ends_with(safetensors::internal::temporary_name(kFileEnding)));
}

// One that no file in the directory has, be it of a checkpoint or of a save that was killed.
std::int64_t next_generation(const std::string& directory) {
  std::int64_t latest = 0;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_regular_file() || !is_data_file(name)) continue;
    long long number = 0;
    if (std::sscanf(name.c_str(), "data-%lld-", &number) == 1)
      latest = std::max<std::int64_t>(latest, number);
  }
  return latest + 1;
}

std::string unique_name() {
  std::random_device random;
  return "checkpoint " + std::to_string(random()) + " " + std::to_string(random());
}

// Values have no owner: all ranks must have the same.
void check_values(const std::vector<Json>& plans) {
  for (std::size_t rank = 1; rank < plans.size(); ++rank) {
    const Json& first = plans[0].at("values");
    const Json& other = plans[rank].at("values");
    if (first == other) continue;
    TORCH_CHECK_VALUE(false, "meshtorch: the ranks have different values to save: rank 0 ", first.dump(),
                      ", rank ", rank, " ", other.dump(),
                      "\n  in: saving a state\n  do: give the same state on every rank");
  }
}

// Each rank names the directory by itself.
void check_files(const std::vector<Json>& files, const std::string& directory) {
  for (std::size_t rank = 0; rank < files.size(); ++rank) {
    if (files[rank].is_null()) continue;
    const DataFile file = data_file_from(files[rank]);
    std::error_code missing;
    const auto size = fs::file_size(fs::path(directory) / file.name, missing);
    TORCH_CHECK_VALUE(!missing && size == file.bytes, "meshtorch: what rank ", rank,
                      " has saved is not in the directory of rank 0\n  file: ", file.name,
                      "\n  directory: ", directory,
                      "\n  do: give one directory, that all ranks see, on every rank");
  }
}

// What a directory holds beside its checkpoint: costs space and nothing else, so that a failure is none of
// ours.
void remove_stale_files(const std::string& directory, const Index& index) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename().string();
    if (is_data_file(name) && !index.files.contains(name)) fs::remove(entry.path(), ignored);
  }
}

}  // namespace

Draft::Draft(const std::string& directory, const State& state) : directory_(directory), rank_(this_rank()) {
  const Gather gather = gather_by_collective();
  std::optional<HeldTensors> held;
  const std::vector<Json> plans = run_together(gather, [&]() -> Json {
    NamedTensors tensors;
    Json values = Json::object();
    for (const auto& section : StateAccess::sections(state)) {
      for (auto& tensor : section->tensors()) tensors.push_back(std::move(tensor));
      values[section->name()] = section->values();
    }
    held.emplace(tensors);
    Json plan{{"tensors", held->to_json()}, {"values", std::move(values)}};
    if (rank_ == 0) {
      safetensors::internal::make_directory(directory);
      lock_ = std::make_unique<DirectoryLock>(directory);
      plan["generation"] = next_generation(directory);
      plan["meeting"] = unique_name();
    }
    return plan;
  });
  plans[0].at("generation").get_to(generation_);
  plans[0].at("meeting").get_to(meeting_);
  values_ = plans[0].at("values");
  check_values(plans);
  std::vector<std::vector<Holding>> holdings;
  for (const Json& plan : plans) holdings.push_back(holdings_from(plan.at("tensors")));
  as_value_error([&] { assignment_ = assign(holdings); });
  for (const auto& [name, tensor] : assignment_) {
    for (const OwnedBox& owned : tensor.boxes) {
      if (owned.owner == rank_)
        mine_.push_back({chunk_name(name, owned.box), tensor.dtype, held->part(name, owned.box)});
    }
  }
}

void Draft::snapshot() {
  try {
    for (OwnChunk& chunk : mine_)
      chunk.values =
          chunk.values.is_cpu() ? chunk.values.clone(at::MemoryFormat::Contiguous) : chunk.values.cpu();
  } catch (const std::exception&) {
    failure_ = std::current_exception();
  }
}

std::string Draft::file_of(int rank) const {
  char name[64];
  std::snprintf(name, sizeof name, "%s%06lld-%05d%s", kFilePrefix, static_cast<long long>(generation_), rank,
                kFileEnding);
  return name;
}

std::string Draft::path_of(const std::string& file) const { return (fs::path(directory_) / file).string(); }

DataFile Draft::write_data() const {
  std::vector<safetensors::internal::StoredTensor> stored;
  for (const OwnChunk& chunk : mine_)
    stored.push_back({.name = chunk.name, .dtype = chunk.dtype, .shape = chunk.values.sizes().vec()});
  DataFile written{file_of(rank_), 0, {}};
  safetensors::internal::AtomicFile file(path_of(written.name));
  safetensors::internal::BlockChecksums checksums;
  const auto append = [&](std::span<const std::byte> bytes) {
    file.append(bytes);
    checksums.update(bytes);
    written.bytes += bytes.size();
  };
  const std::string header = safetensors::internal::render_header(stored, {});
  append(std::as_bytes(std::span(header)));
  for (const OwnChunk& chunk : mine_) {
    for_each_slab(chunk.values, [&](const at::Tensor& slab, std::int64_t) {
      const at::Tensor values = meshtorch::internal::readable(slab.cpu());
      append({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
    });
  }
  file.commit();
  written.checksums = checksums.finish();
  return written;
}

Index Draft::index_of(const std::vector<Json>& files) const {
  Index index;
  index.generation = generation_;
  index.values = values_;
  for (const Json& json : files) {
    if (json.is_null()) continue;
    const DataFile file = data_file_from(json);
    index.files[file.name] = file;
  }
  for (const auto& [name, tensor] : assignment_) {
    IndexedTensor& indexed =
        index.tensors[name] = {.dtype = tensor.dtype, .shape = tensor.shape, .chunks = {}};
    for (const OwnedBox& owned : tensor.boxes) indexed.chunks.push_back({file_of(owned.owner), owned.box});
  }
  return index;
}

void Draft::write(const Gather& gather) {
  const std::unique_ptr<DirectoryLock> until_written = std::move(lock_);
  std::vector<Json> files;
  try {
    files = run_together(gather, [&]() -> Json {
      if (failure_) std::rethrow_exception(failure_);
      return mine_.empty() ? Json() : to_json(write_data());
    });
    run_together(gather, [&]() -> Json {
      if (rank_ == 0) check_files(files, directory_);
      return nullptr;
    });
  } catch (...) {  // no index names the file
    std::error_code ignored;
    fs::remove(path_of(file_of(rank_)), ignored);
    throw;
  }
  const Index index = index_of(files);
  run_together(gather, [&]() -> Json {
    if (rank_ != 0) return nullptr;
    safetensors::internal::AtomicFile file(index_path(directory_));
    file.append(index.to_text());
    file.commit();
    return nullptr;
  });
  if (rank_ == 0) remove_stale_files(directory_, index);
}

}  // namespace meshtorch::checkpoint::internal

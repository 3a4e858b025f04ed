// Hugging Face checkpoints of tiny models, in directories that end with the test.
#pragma once

#include <meshtorch/safetensors.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tiny_model.h"

namespace meshtorch::testing {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "llama_test_XXXXXX").string();
    TORCH_CHECK(::mkdtemp(name.data()) != nullptr, "cannot make a directory");
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const char* name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}
inline std::string read_text(const std::filesystem::path& path) {
  return (std::ostringstream() << std::ifstream(path, std::ios::binary).rdbuf()).str();
}

inline safetensors::NamedTensors tensors_of(llama::Llama model) {
  safetensors::NamedTensors tensors;
  for (const auto& item : model->named_parameters()) tensors.emplace_back(item.key(), item.value().detach());
  return tensors;
}

inline void write_checkpoint(const std::filesystem::path& directory, const llama::Config& config,
                             const safetensors::NamedTensors& tensors) {
  write_text(directory / "config.json", config.to_json());
  safetensors::write((directory / "model.safetensors").string(), tensors);
}
inline void write_checkpoint(const std::filesystem::path& directory, const llama::Config& config) {
  write_checkpoint(directory, config, tensors_of(filled_model(config, torch::kFloat)));
}

}  // namespace meshtorch::testing

// What safetensors::Files holds.
#pragma once

#include <map>
#include <string>

#include "meshtorch/safetensors.h"
#include "safetensors/model_files.h"

namespace meshtorch::safetensors {

struct Files::Impl {
  explicit Impl(const std::string& path);

  internal::ModelFiles files;
  std::map<std::string, Entry> entries;
};

}  // namespace meshtorch::safetensors

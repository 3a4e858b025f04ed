// An empty directory for readers that want files by name; it vanishes with the process.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "readers.h"

namespace meshtorch::fuzz {

class Folder {
 public:
  Folder() {
    // In memory where that is, since every input is a file there.
    const std::filesystem::path memory("/dev/shm");
    const auto parent =
        std::filesystem::is_directory(memory) ? memory : std::filesystem::temp_directory_path();
    path_ = (parent / "meshtorch_fuzz_XXXXXX").string();
    require(::mkdtemp(path_.data()) != nullptr, "no directory can be made");
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  void write(const std::string& file, const std::string& bytes) const {
    std::ofstream(path_ + "/" + file, std::ios::binary) << bytes;
  }
  void remove(const std::string& file) const { std::filesystem::remove(path_ + "/" + file); }

 private:
  std::string path_;
};

}  // namespace meshtorch::fuzz

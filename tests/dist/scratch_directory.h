// A directory that all ranks of a test share and that vanishes with it.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>

#include "ranks.h"

namespace meshtorch::testing {

// To be made inside on_ranks, by every rank with the same name: empty at the beginning, removed at the end.
class ScratchDirectory {
 public:
  explicit ScratchDirectory(const std::string& name)
      : path_(std::filesystem::temp_directory_path() / ("meshtorch_" + owner() + "_" + name)) {
    if (mt::get_rank() == 0) {
      std::filesystem::remove_all(path_);
      std::filesystem::create_directories(path_);
    }
    mt::barrier();
  }
  ~ScratchDirectory() {
    try {
      mt::barrier();
    } catch (const std::exception&) {  // a rank failed; the test says so
    }
    if (mt::get_rank() == 0) std::filesystem::remove_all(path_);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  std::string operator/(const std::string& file) const { return (path_ / file).string(); }
  std::string path() const { return path_.string(); }

 private:
  // Runs side by side have directories of their own: ranks of one run agree on the launcher or the process.
  static std::string owner() { return std::to_string(ranks_are_processes() ? ::getppid() : ::getpid()); }
  std::filesystem::path path_;
};

// Runs `act` on rank 0 alone; the others wait.
inline void on_rank_0(const std::function<void()>& act) {
  if (mt::get_rank() == 0) act();
  mt::barrier();
}

}  // namespace meshtorch::testing

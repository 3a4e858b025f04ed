// A directory that all ranks of a test share and that vanishes with it.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>

#include "ranks.h"

namespace meshtorch::testing {

// A path of this run's own: ranks of one run agree on the launcher or the process.
inline std::filesystem::path scratch_path(const std::string& name) {
  const auto owner = std::to_string(ranks_are_processes() ? ::getppid() : ::getpid());
  return std::filesystem::temp_directory_path() / ("meshtorch_" + owner + "_" + name);
}

// To be made inside on_ranks, by every rank with the same name: empty at the beginning, removed at the end.
class ScratchDirectory {
 public:
  explicit ScratchDirectory(const std::string& name) : path_(scratch_path(name)) {
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
  std::filesystem::path path_;
};

// Runs `act` on rank 0 alone, between what all ranks did before and do afterwards.
inline void on_rank_0(const std::function<void()>& act) {
  mt::barrier();
  if (mt::get_rank() == 0) act();
  mt::barrier();
}

// For tests whose ranks come and go: an empty directory, to be used by several worlds and removed outside
// them.
inline void remove_kept_directory(const std::string& name) {
  on_ranks(1, [&](int) { std::filesystem::remove_all(scratch_path(name)); });
}
inline std::string kept_directory(const std::string& name) {
  remove_kept_directory(name);
  return scratch_path(name).string();
}

}  // namespace meshtorch::testing

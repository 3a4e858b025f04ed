// A checkpoint on its way to the disk: planned by all ranks together, written by each for itself, committed
// by rank 0.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/directory_lock.h"
#include "checkpoint/gather.h"
#include "checkpoint/plan/assign.h"
#include "meshtorch/checkpoint.h"

namespace meshtorch::checkpoint::internal {

class Draft {
 public:
  // Agrees with all ranks on who writes what. If one rank fails, all throw.
  Draft(const std::string& directory, const State& state);

  // Copies what this rank writes, so that the state may change. A failure is reported by write().
  void snapshot();
  // Writes, and makes the checkpoint that of the directory. If one rank fails, all throw, and the directory
  // keeps the checkpoint that it had.
  void write(const Gather& gather);

  // A name that no other draft has, for meetings in the background.
  const std::string& meeting() const { return meeting_; }

 private:
  // A box that this rank writes.
  struct OwnChunk {
    std::string name;
    std::string dtype;
    at::Tensor values;
  };

  DataFile write_data() const;
  Index index_of(const std::vector<Json>& files) const;
  std::string file_of(int rank) const;
  std::string path_of(const std::string& file) const;

  std::string directory_;
  int rank_;
  std::int64_t generation_ = 0;
  std::string meeting_;
  Json values_;
  Assignment assignment_;
  std::vector<OwnChunk> mine_;
  std::exception_ptr failure_;
  std::unique_ptr<DirectoryLock> lock_;  // of rank 0, until it is written
};

}  // namespace meshtorch::checkpoint::internal

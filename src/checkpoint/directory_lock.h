// One job at a time writes to a directory of checkpoints.
#pragma once

#include <string>

namespace meshtorch::checkpoint::internal {

// Held while it lives; the system gives it back when the process ends, however it does. It leaves no file.
// Where the file system has no locks, there is none.
class DirectoryLock {
 public:
  // Throws ValueError that names the job that holds it.
  explicit DirectoryLock(const std::string& directory);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  int directory_;
};

}  // namespace meshtorch::checkpoint::internal

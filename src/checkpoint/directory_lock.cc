// One job at a time writes to a directory of checkpoints: a lock on the directory itself.
#include "checkpoint/directory_lock.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <sstream>

namespace meshtorch::checkpoint::internal {
namespace {

// "process 1234 (program argument …)", as far as this host knows it.
std::string name_holder(int directory) {
  struct stat facts{};
  if (fstat(directory, &facts) != 0) return "unknown";
  const std::string inode = ":" + std::to_string(facts.st_ino);
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    std::istringstream fields(line);
    std::string number, kind, advice, mode, process, file;
    fields >> number >> kind >> advice >> mode >> process >> file;
    if (kind != "FLOCK" || !file.ends_with(inode)) continue;
    std::ifstream words("/proc/" + process + "/cmdline", std::ios::binary);
    std::string command{std::istreambuf_iterator<char>(words), std::istreambuf_iterator<char>()};
    std::replace(command.begin(), command.end(), '\0', ' ');
    constexpr std::size_t kLongest = 200;
    return "process " + process + " (" + command.substr(0, kLongest) + ")";
  }
  return "a process that this host does not know";
}

}  // namespace

DirectoryLock::DirectoryLock(const std::string& directory)
    : directory_(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (directory_ < 0 || flock(directory_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  const std::string holder = name_holder(directory_);
  close(directory_);
  TORCH_CHECK_VALUE(false, "meshtorch: another job saves to this directory\n  directory: ", directory,
                    "\n  job: ", holder, "\n  do: wait until it has ended, or name another directory");
}

DirectoryLock::~DirectoryLock() {
  if (directory_ >= 0) close(directory_);
}

}  // namespace meshtorch::checkpoint::internal

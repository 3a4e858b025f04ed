// A second process that kills what the ranks started if the launcher itself is killed.
#pragma once

#include <sys/types.h>

#include <string>

namespace meshtorch::run {

// The kernel kills the ranks when the launcher dies, but not the processes that a rank has started,
// for instance the program behind a wrapper script. The guardian notices and kills the whole
// process groups, and what left them, which it knows by the identity of the run.
class Guardian {
 public:
  // Forks the guardian; without it (no memory for a process) only the kernel's part is left.
  explicit Guardian(const std::string& identity);
  // Lets the guardian go without killing anything.
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  void watch_group(pid_t group);
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int write_end_ = -1;
};

}  // namespace meshtorch::run

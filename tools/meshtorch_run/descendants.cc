// Adopts orphans (Linux's child subreaper) and lists children from /proc.
#include "descendants.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace meshtorch::run {

void adopt_orphans() { prctl(PR_SET_CHILD_SUBREAPER, 1); }

std::vector<pid_t> list_children() {
  std::vector<pid_t> children;
  std::ifstream list("/proc/self/task/" + std::to_string(getpid()) + "/children");
  for (pid_t pid = 0; list >> pid;) children.push_back(pid);
  return children;
}

}  // namespace meshtorch::run

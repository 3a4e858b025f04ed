// The guardian waits on a pipe whose other end only the launcher holds: its end means the launcher
// died.
#include "guardian.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <vector>

#include "run_identity.h"

namespace meshtorch::run {
namespace {

constexpr pid_t kAllIsWell = 0;

// A process may start another between a look and a kill: looks until nothing is there, or nothing changes.
void kill_run(const std::string& identity) {
  constexpr int kLooks = 50;
  for (int i = 0; i < kLooks; ++i) {
    const std::vector<pid_t> left = processes_of_run(identity);
    if (left.empty()) return;
    for (const pid_t pid : left) kill(pid, SIGKILL);
    usleep(10'000);
  }
}

[[noreturn]] void guard(int read_end, const std::string& identity) {
  setpgid(0, 0);  // out of reach of Ctrl-C and of a kill of the launcher's group
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nothing, fd);

  std::vector<pid_t> groups;
  pid_t message = 0;
  ssize_t size = 0;
  while ((size = read(read_end, &message, sizeof message)) == sizeof message) {
    if (message == kAllIsWell) _exit(0);
    groups.push_back(message);
  }
  for (const pid_t group : groups) kill(-group, SIGKILL);
  kill_run(identity);
  _exit(0);
}

}  // namespace

Guardian::Guardian(const std::string& identity) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return;
  pid_ = fork();
  if (pid_ == 0) {
    close(ends[1]);
    guard(ends[0], identity);
  }
  close(ends[0]);
  write_end_ = ends[1];
}

Guardian::~Guardian() {
  if (pid_ > 0) {
    watch_group(kAllIsWell);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  if (write_end_ >= 0) close(write_end_);
}

void Guardian::watch_group(pid_t group) {
  // A failed write means that someone killed the guardian: the ranks run on without it.
  if (write_end_ < 0 || write(write_end_, &group, sizeof group) == sizeof group) return;
  close(write_end_);
  write_end_ = -1;
}

}  // namespace meshtorch::run

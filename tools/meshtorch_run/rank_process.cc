// Forks and executes one rank with pipes for its output and torch's rendezvous variables.
#include "rank_process.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>
#include <vector>

#include "run_identity.h"

namespace meshtorch::run {
namespace {

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
    read_end = ends[0];
    write_end = ends[1];
  }
  ~Pipe() {
    if (read_end >= 0) close(read_end);
    if (write_end >= 0) close(write_end);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  int release_read_end() { return std::exchange(read_end, -1); }
  void close_write_end() { close(std::exchange(write_end, -1)); }

  int read_end = -1;
  int write_end = -1;
};

int usable_cores() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) return CPU_COUNT(&cores);
  return static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
}

void set_environment(const Options& options, int rank, int local_rank) {
  const auto set = [](const char* name, int value) { setenv(name, std::to_string(value).c_str(), 1); };
  set("RANK", rank);
  set("WORLD_SIZE", options.world_size());
  set("LOCAL_RANK", local_rank);
  set("LOCAL_WORLD_SIZE", options.processes);
  set("NODE_RANK", options.node_rank);
  set("GROUP_RANK", options.node_rank);
  set("MASTER_PORT", options.master_port);
  set("MESHTORCH_RESTART", options.restart);
  setenv(kIdentityVariable, options.identity.c_str(), 1);
  if (!options.secret.empty()) setenv(kSecretVariable, options.secret.c_str(), 1);
  if (!options.flight_record.empty()) setenv("MESHTORCH_FLIGHT_RECORD", options.flight_record.c_str(), 1);
  setenv("MASTER_ADDR", options.master_addr.c_str(), 1);
  const int threads = std::max(1, usable_cores() / options.processes);
  setenv("OMP_NUM_THREADS", std::to_string(threads).c_str(), 0);
}

void die_with(pid_t launcher) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const bool launcher_died_before_that = getppid() != launcher;
  if (launcher_died_before_that) _exit(kLauncherFailed);
}

// Returns only if the program cannot be executed, with errno.
int execute(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  return errno;
}

[[noreturn]] void become_rank(const Options& options, int rank, int local_rank, pid_t launcher,
                              const sigset_t& signal_mask, const Pipe& output, const Pipe& error,
                              const Pipe& failure) {
  setpgid(0, 0);
  die_with(launcher);
  if (rank != 0) dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
  dup2(output.write_end, STDOUT_FILENO);
  dup2(error.write_end, STDERR_FILENO);
  set_environment(options, rank, local_rank);
  signal(SIGPIPE, SIG_DFL);
  sigprocmask(SIG_SETMASK, &signal_mask, nullptr);
  const int reason = execute(options.command);
  const ssize_t told = write(failure.write_end, &reason, sizeof reason);
  _exit(told == sizeof reason ? kNotFound : kLauncherFailed);
}

ExecError explain_exec_failure(const std::string& program, int reason) {
  const bool missing = reason == ENOENT || reason == ENOTDIR;
  const bool is_path = program.find('/') != std::string::npos;
  std::string remedy = "check the file: is it executable (chmod +x) and built for this machine?";
  if (missing && !is_path) remedy = "put it on PATH, or give its path, for instance ./" + program;
  if (missing && is_path)
    remedy = access(program.c_str(), F_OK) == 0
                 ? "the file is there: check the interpreter in its first line"
                 : "check the path; it is read from the folder where meshtorch-run was started";
  return {"cannot run `" + program + "`.\n  " + strerror(reason) + "\n  do: " + remedy,
          missing ? kNotFound : kNotExecutable};
}

}  // namespace

RankProcess start_rank(const Options& options, int local_rank, const sigset_t& signal_mask) {
  const int rank = options.node_rank * options.processes + local_rank;
  const pid_t launcher = getpid();
  Pipe output;
  Pipe error;
  Pipe failure;  // closed by a successful exec, so that reading it waits for exec and no longer
  const pid_t pid = fork();
  if (pid < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (pid == 0) become_rank(options, rank, local_rank, launcher, signal_mask, output, error, failure);

  // Also done by the child: whichever comes first, the group exists before anyone signals it.
  setpgid(pid, pid);
  failure.close_write_end();
  int reason = 0;
  ssize_t size = 0;
  do size = read(failure.read_end, &reason, sizeof reason);
  while (size < 0 && errno == EINTR);
  if (size == sizeof reason) {
    waitpid(pid, nullptr, 0);
    throw explain_exec_failure(options.command[0], reason);
  }
  return {rank, pid, output.release_read_end(), error.release_read_end()};
}

}  // namespace meshtorch::run

// The real meshtorch-run binary as seen by its tests: started, signalled, and waited for with a
// time bound.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace meshtorch::run_test {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using Words = std::vector<std::string>;

// A limit for what never ends, far above what a busy machine needs; no test measures a time.
inline constexpr milliseconds kBound{30000};

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Waits until the condition holds; false if the time is up first.
template <typename Condition>
bool wait_until(Condition condition, milliseconds bound = kBound) {
  const auto end = Clock::now() + bound;
  while (!condition()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return true;
}

// True for a process that runs; a zombie that nobody has reaped yet does not.
inline bool is_alive(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(stat, text);
  const std::size_t end_of_name = text.rfind(')');
  return end_of_name != std::string::npos && text.substr(end_of_name + 2, 1) != "Z";
}

struct Result {
  int exit_code = -1;
  std::string out;
  std::string err;
};

// One run of the launcher. Whatever happens, it is killed when the test is over.
class LauncherProcess {
 public:
  explicit LauncherProcess(const std::vector<std::string>& arguments, const std::string& input = "") {
    std::array<int, 2> in{};
    std::array<int, 2> out{};
    std::array<int, 2> err{};
    // Where the tests themselves have no standard input, a pipe must not take its number.
    if (fcntl(STDIN_FILENO, F_GETFD) < 0) open("/dev/null", O_RDONLY);
    for (auto* ends : {&in, &out, &err}) EXPECT_EQ(pipe2(ends->data(), O_CLOEXEC), 0);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      dup2(err[1], STDERR_FILENO);
      execute(arguments);
    }
    for (const int fd : {in[0], out[1], err[1]}) close(fd);
    EXPECT_EQ(write(in[1], input.data(), input.size()), static_cast<ssize_t>(input.size()));
    close(in[1]);
    out_ = out[0];
    err_ = err[0];
  }
  ~LauncherProcess() {
    if (pid_ > 0 && kill(pid_, SIGKILL) == 0) waitpid(pid_, nullptr, 0);
    close_output();
    close(err_);
  }
  LauncherProcess(const LauncherProcess&) = delete;
  LauncherProcess& operator=(const LauncherProcess&) = delete;

  void send(int number) const { kill(pid_, number); }

  // The reader of the launcher's output goes away.
  void close_output() {
    if (out_ >= 0) close(std::exchange(out_, -1));
  }

  // Reads all output and returns how the launcher ended; fails the test if that takes too long.
  Result wait(milliseconds bound = kBound) {
    Result result;
    const auto end = Clock::now() + bound;
    std::array<pollfd, 2> streams{{{out_, POLLIN, 0}, {err_, POLLIN, 0}}};
    while ((streams[0].fd >= 0 || streams[1].fd >= 0) && Clock::now() < end) {
      if (poll(streams.data(), streams.size(), 20) <= 0) continue;
      read_some(streams[0], result.out);
      read_some(streams[1], result.err);
    }
    result.exit_code = wait_for_exit(end);
    return result;
  }

  bool is_running() const { return is_alive(pid_); }

  // True when nothing more goes into the pipe that takes the launcher's output.
  bool output_is_full() const {
    int held = 0;
    const int room = fcntl(out_, F_GETPIPE_SZ);
    // The last page may stay part empty, since lines are written whole.
    return ioctl(out_, FIONREAD, &held) == 0 && held > room - static_cast<int>(sysconf(_SC_PAGESIZE));
  }

  // Waits without reading any output.
  int wait_without_reading(milliseconds bound = kBound) { return wait_for_exit(Clock::now() + bound); }

 private:
  [[noreturn]] static void execute(const std::vector<std::string>& arguments) {
    // The tests may themselves run under a launcher, or as a background job that ignores SIGINT.
    for (const char* name : {"RANK", "WORLD_SIZE", "OMP_NUM_THREADS"}) unsetenv(name);
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) signal(number, SIG_DFL);
    std::vector<char*> words{const_cast<char*>(MESHTORCH_RUN_BINARY)};
    for (const std::string& argument : arguments) words.push_back(const_cast<char*>(argument.c_str()));
    words.push_back(nullptr);
    execv(words[0], words.data());
    _exit(99);
  }

  static void read_some(pollfd& stream, std::string& text) {
    if (stream.fd < 0 || stream.revents == 0) return;
    std::array<char, 65536> buffer;
    const ssize_t size = read(stream.fd, buffer.data(), buffer.size());
    if (size > 0) text.append(buffer.data(), static_cast<std::size_t>(size));
    if (size <= 0) stream.fd = -1;
  }

  int wait_for_exit(Clock::time_point end) {
    int status = 0;
    while (waitpid(pid_, &status, WNOHANG) == 0) {
      if (Clock::now() > end) {
        ADD_FAILURE() << "meshtorch-run did not end in time";
        return -1;
      }
      std::this_thread::sleep_for(milliseconds(2));
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  pid_t pid_ = -1;
  int out_ = -1;
  int err_ = -1;
};

// Runs to the end.
inline Result run(const std::vector<std::string>& arguments, const std::string& input = "") {
  return LauncherProcess(arguments, input).wait();
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// A folder in which the processes under test leave word: their pids, one file each.
class Noticeboard {
 public:
  Noticeboard() {
    std::string name = (std::filesystem::temp_directory_path() / "meshtorch_run_XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~Noticeboard() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Noticeboard(const Noticeboard&) = delete;
  Noticeboard& operator=(const Noticeboard&) = delete;

  std::string path() const { return path_.string(); }
  // A shell command that leaves the pid of the shell under a name. Renaming makes the notice appear
  // whole.
  std::string sign(const std::string& name) const {
    const std::string file = path() + "/" + name;
    return "sh -c 'echo $PPID' > " + file + ".new; mv " + file + ".new " + file + ".pid; ";
  }
  std::vector<pid_t> pids() const {
    std::vector<pid_t> found;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      pid_t pid = 0;
      if (entry.path().extension() == ".pid" && std::ifstream(entry.path()) >> pid) found.push_back(pid);
    }
    return found;
  }
  // The pids of that many processes, when all have signed.
  std::vector<pid_t> wait_for(std::size_t count) const {
    EXPECT_TRUE(wait_until([&] { return pids().size() == count; })) << "not all processes have started";
    return pids();
  }

 private:
  std::filesystem::path path_;
};

inline void expect_gone(const std::vector<pid_t>& pids, milliseconds bound = milliseconds(0)) {
  for (const pid_t pid : pids)
    EXPECT_TRUE(wait_until([&] { return !is_alive(pid); }, bound)) << "process " << pid << " is left";
}

}  // namespace meshtorch::run_test

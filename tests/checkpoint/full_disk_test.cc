// Checkpoints on a disk that is full, and under a limit of the size of files: an error on every rank, which
// leaves the old checkpoint whole and nothing else. On thread ranks, and on processes that a launcher starts.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <meshtorch/checkpoint.h>
#include <meshtorch/collectives.h>
#include <meshtorch/device_mesh.h>
#include <meshtorch/dtensor.h>
#include <meshtorch/launch.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

namespace meshtorch::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr int kRanks = 2;
constexpr std::int64_t kSmall = 1 << 10;  // elements: fits
constexpr std::int64_t kLarge = 1 << 20;  // 2 MiB a rank: fits neither the disk nor the limit
constexpr rlim_t kLargestFile = 1 << 20;
constexpr int kNotPermitted = 77;

std::string error_of_save(const std::string& directory, const State& state, bool in_background) {
  try {
    if (in_background) {
      save_async(directory, state).wait();
    } else {
      save(directory, state);
    }
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

int failures = 0;

void expect(bool holds, const std::string& what) {
  if (holds) return;
  ++failures;
  std::fprintf(stderr, "not so: %s\n", what.c_str());
}

const std::string kTooLarge = "File too large";

void limit_files() {
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  limit.rlim_cur = kLargestFile;
  setrlimit(RLIMIT_FSIZE, &limit);
}

std::size_t files_in(const std::string& directory) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(directory), fs::directory_iterator()));
}

// One rank of the program that the test starts.
void save_what_does_not_fit(const std::string& directory, const std::string& reason) {
  const DeviceMesh mesh = init_device_mesh(c10::DeviceType::CPU, {kRanks});
  const DTensor kept = full({kSmall}, 7.0, mesh, {Shard(0)});
  if (reason == kTooLarge) limit_files();  // the memory that processes share is a file too, and made by now
  save(directory, State().add("kept", kept));
  barrier();
  const std::size_t files = files_in(directory);
  barrier();
  for (const bool in_background : {false, true}) {
    const State large = State().add("kept", full({kLarge}, 8.0, mesh, {Shard(0)}));
    const std::string error = error_of_save(directory, large, in_background);
    expect(error.find(reason) != std::string::npos, "the error names the reason: " + error);
    barrier();
    expect(files_in(directory) == files, "nothing is left behind");
    barrier();
  }
  const DTensor loaded = zeros({kSmall}, mesh, {Shard(0)});
  load(directory, State().add("kept", loaded));
  expect(at::equal(loaded.to_local(), kept.to_local()), "the old checkpoint is whole");
  save(directory, State().add("kept", kept));  // and what fits can be saved again
}

int play(const std::string& event, const std::string& directory) {
  const std::string reason = event == "full disk" ? "No space left on device" : kTooLarge;
  run(kRanks, [&](int) { save_what_does_not_fit(directory, reason); });
  return failures == 0 ? 0 : 1;
}

// Runs this program again, alone or under meshtorch-run, in a world of mounts of its own that has a small
// disk.
int exit_code_of(const std::string& event, bool are_processes, const std::string& directory) {
  const pid_t process = ::fork();
  if (process == 0) {
    if (event == "full disk") {
      const bool is_small = ::unshare(CLONE_NEWNS) == 0 &&
                            ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                            ::mount("tmpfs", directory.c_str(), "tmpfs", 0, "size=1m") == 0;
      if (!is_small) ::_exit(kNotPermitted);
    }
    const std::string self = fs::read_symlink("/proc/self/exe");
    if (are_processes) {
      ::execl(MESHTORCH_RUN_BINARY, "meshtorch-run", "-n", "2", "--timeout", "100", self.c_str(), "--play",
              event.c_str(), directory.c_str(), nullptr);
    }
    ::execl(self.c_str(), self.c_str(), "--play", event.c_str(), directory.c_str(), nullptr);
    ::_exit(127);
  }
  int status = 0;
  ::waitpid(process, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

class Unsaved : public ::testing::TestWithParam<bool> {
 protected:
  Unsaved() { fs::create_directories(directory_); }
  ~Unsaved() override { fs::remove_all(directory_); }
  const std::string directory_ =
      (fs::temp_directory_path() / ("meshtorch_full_disk_" + std::to_string(::getpid()))).string();
};

TEST_P(Unsaved, AFullDiskIsAnErrorOnEveryRankAndLeavesTheOldCheckpoint) {
  const int code = exit_code_of("full disk", GetParam(), directory_);
  if (code == kNotPermitted) GTEST_SKIP() << "this user may not mount a small disk";
  EXPECT_EQ(code, 0);
}

TEST_P(Unsaved, AFileBeyondTheLimitIsAnErrorOnEveryRankAndLeavesTheOldCheckpoint) {
  EXPECT_EQ(exit_code_of("size limit", GetParam(), directory_), 0);
}

INSTANTIATE_TEST_SUITE_P(Checkpoint, Unsaved, ::testing::Bool(),
                         [](const auto& instance) { return instance.param ? "processes" : "threads"; });

}  // namespace
}  // namespace meshtorch::checkpoint

int main(int argc, char** argv) {
  if (argc == 4 && std::strcmp(argv[1], "--play") == 0) return meshtorch::checkpoint::play(argv[2], argv[3]);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

// A process killed at random moments of its saves: the directory always loads, as one checkpoint and no
// mixture.
#include <ATen/ATen.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <meshtorch/checkpoint.h>
#include <meshtorch/device_mesh.h>
#include <meshtorch/dtensor.h>
#include <meshtorch/launch.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <random>

namespace meshtorch::checkpoint {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kKills = 50;
constexpr int kRanks = 2;
const std::vector<std::int64_t> kShape{257, 301};

// Saves one checkpoint after the other, filled with its number, and tells each number when it is saved.
void save_forever(const std::string& directory, std::int64_t first, int told) {
  spawn(kRanks, [&](int rank) {
    const DeviceMesh mesh = init_device_mesh(c10::DeviceType::CPU, {kRanks});
    const DTensor rows = zeros(kShape, mesh, {Shard(0)});
    const DTensor columns = zeros(kShape, mesh, {Shard(1)}, at::kBFloat16);
    const DTensor whole = zeros(kShape, mesh, {Replicate()}, at::kDouble);
    std::int64_t step = first;
    const State state =
        State().add("rows", rows).add("columns", columns).add("whole", whole).add("step", step);
    for (;; ++step) {
      for (const DTensor& tensor : {rows, columns, whole}) tensor.fill_(static_cast<double>(step % 100));
      if (step % 2 == 0) {
        save(directory, state);
      } else {
        save_async(directory, state).wait();
      }
      if (rank == 0 && ::write(told, &step, sizeof step) != sizeof step) return;
    }
  });
}

struct Child {
  pid_t process = 0;
  int told = -1;
};

Child start(const std::function<void(int told)>& work) {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  std::fflush(stdout);  // else the child writes it too
  const pid_t process = ::fork();
  if (process == 0) {
    ::close(ends[0]);
    try {
      work(ends[1]);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      std::_Exit(1);
    }
    std::exit(0);  // as main() would: what is in the background is completed
  }
  ::close(ends[1]);
  return {process, ends[0]};
}

// The next number that the child tells within the limit; -1 if none.
std::int64_t next_told(const Child& child, int milliseconds) {
  pollfd wait{.fd = child.told, .events = POLLIN, .revents = 0};
  std::int64_t step = -1;
  if (::poll(&wait, 1, milliseconds) > 0 && ::read(child.told, &step, sizeof step) != sizeof step) return -1;
  return step;
}

// Kills the child, and gives the last number that it told.
std::int64_t kill_child(const Child& child, std::int64_t last) {
  ::kill(child.process, SIGKILL);
  ::waitpid(child.process, nullptr, 0);
  for (std::int64_t told = next_told(child, 0); told >= 0; told = next_told(child, 0)) last = told;
  ::close(child.told);
  return last;
}

constexpr std::int64_t kMixture = -2;

// The number of the checkpoint in a directory; kMixture if its parts have several, -1 if it cannot be loaded.
// A child loads it, since a process that has used LibTorch's threads cannot be forked again.
std::int64_t loaded_step(const std::string& directory) {
  const Child child = start([&](int told) {
    const at::Tensor rows = at::zeros(kShape);
    const at::Tensor columns = at::zeros(kShape);
    const at::Tensor whole = at::zeros(kShape, at::kDouble);
    std::int64_t step = -1;
    load(directory, State().add("rows", rows).add("columns", columns).add("whole", whole).add("step", step));
    for (const at::Tensor& tensor : {rows, columns, whole}) {
      if (!tensor.eq(static_cast<double>(step % 100)).all().item<bool>()) step = kMixture;
    }
    if (::write(told, &step, sizeof step) != sizeof step) std::_Exit(1);
  });
  const std::int64_t step = next_told(child, 60'000);
  ::waitpid(child.process, nullptr, 0);
  ::close(child.told);
  return step;
}

class Killed : public ::testing::Test {
 protected:
  Killed() { fs::remove_all(directory_); }
  ~Killed() override { fs::remove_all(directory_); }

  const std::string directory_ =
      (fs::temp_directory_path() / ("meshtorch_killed_" + std::to_string(::getpid()))).string();
};

TEST_F(Killed, AtAnyMomentOfASaveTheDirectoryLoads) {
  const unsigned seed = std::random_device()();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  std::int64_t last = 0;
  int during_old = 0;
  for (int i = 0; i < kKills; ++i) {
    const Child child = start([&](int told) { save_forever(directory_, last + 1, told); });
    // Two saves, the second of which says how long one takes; the third is killed somewhere.
    for (int saves = 0; saves < 2; ++saves) {
      const std::int64_t told = next_told(child, 60'000);
      ASSERT_GT(told, 0) << "the child saved nothing within a minute";
      last = told;
    }
    const auto begin = Clock::now();
    last = std::max(last, next_told(child, 60'000));
    const auto one_save = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin);
    const auto delay = std::uniform_int_distribution<std::int64_t>(0, one_save.count())(random);
    ::usleep(static_cast<useconds_t>(delay));
    last = kill_child(child, last);
    const std::int64_t step = loaded_step(directory_);
    ASSERT_NE(step, kMixture) << "kill " << i << ", seed " << seed;
    ASSERT_TRUE(step == last || step == last + 1) << "loaded " << step << " after " << last << " was saved";
    during_old += step == last ? 1 : 0;
    last = step;
  }
  std::printf("%d kills left the checkpoint before, %d the one that was being saved\n", during_old,
              kKills - during_old);
  // What the killed saves left behind is gone after the next one.
  const Child child = start([&](int) { save(directory_, State().add("rows", at::zeros(kShape))); });
  ::waitpid(child.process, nullptr, 0);
  ::close(child.told);
  const auto entries = fs::directory_iterator(directory_);
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 2);
}

TEST_F(Killed, AProcessThatEndsCompletesWhatIsInTheBackground) {
  const Child child = start([&](int) {
    static const at::Tensor rows = at::full(kShape, 3.0);
    static const at::Tensor columns = at::full(kShape, 3.0);
    static const at::Tensor whole = at::full(kShape, 3.0, at::kDouble);
    static std::int64_t step = 3;
    save_async(directory_,
               State().add("rows", rows).add("columns", columns).add("whole", whole).add("step", step));
  });
  int status = 0;
  ::waitpid(child.process, &status, 0);
  ::close(child.told);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(loaded_step(directory_), 3);
}

}  // namespace
}  // namespace meshtorch::checkpoint

// What ranks that wait for each other cost: small tensor-parallel steps of 2, 8 and 16 thread ranks on the
// cores of this machine, idle and beside other programs that use each core. Wall time and CPU time of a step.
#include <meshtorch/meshtorch.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "small_step.h"
#include "stopwatch.h"

namespace mt = meshtorch;

namespace {

constexpr int kSteps = 200;
constexpr int kWarmUp = 20;

double cpu_milliseconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto of = [](const timeval& t) {
    return 1e3 * static_cast<double>(t.tv_sec) + 1e-3 * static_cast<double>(t.tv_usec);
  };
  return of(used.ru_utime) + of(used.ru_stime);
}

// Programs that do nothing but compute, while it lives.
class BusyLoops {
 public:
  explicit BusyLoops(unsigned count) {
    for (unsigned i = 0; i < count; ++i) {
      const pid_t child = fork();
      if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) asm volatile("");
      }
      children_.push_back(child);
    }
  }
  ~BusyLoops() {
    for (const pid_t child : children_) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
  }
  BusyLoops(const BusyLoops&) = delete;
  BusyLoops& operator=(const BusyLoops&) = delete;

 private:
  std::vector<pid_t> children_;
};

nlohmann::ordered_json measure(int ranks, unsigned loops) {
  const BusyLoops busy(loops);
  double wall = 0;
  double cpu = 0;
  mt::spawn(ranks, [&](int rank) {
    const auto mesh = mt::init_device_mesh(torch::kCPU, {ranks}, {"tp"});
    small_step::Step step(mesh);
    for (int i = 0; i < kWarmUp; ++i) step.run();
    mt::barrier();
    const Stopwatch steps;
    const double before = cpu_milliseconds();
    for (int i = 0; i < kSteps; ++i) step.run();
    mt::barrier();
    if (rank == 0) {
      wall = steps.milliseconds() / kSteps;
      cpu = (cpu_milliseconds() - before) / kSteps;
    }
  });
  return {{"ranks", ranks}, {"busy_loops", loops}, {"wall_ms", wall}, {"cpu_ms", cpu}};
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const unsigned cores = std::thread::hardware_concurrency();
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  std::printf("%u cores\nranks  busy loops   wall of a step    CPU of a step\n", cores);
  for (const int ranks : {2, 8, 16}) {
    for (const unsigned loops : {0U, cores}) {
      const auto row = measure(ranks, loops);
      std::printf("%5d  %10u   %11.2f ms   %11.2f ms\n", ranks, loops, row["wall_ms"].get<double>(),
                  row["cpu_ms"].get<double>());
      std::fflush(stdout);
      rows.push_back(row);
    }
  }
  if (argc > 1) std::ofstream(argv[1]) << rows.dump(1) << "\n";
}

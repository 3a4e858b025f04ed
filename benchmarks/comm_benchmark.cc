// The time of one collective over 4 ranks: threads of this process, and 4 gloo processes, of which this one
// is rank 0.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <benchmark/benchmark.h>
#include <meshtorch/collectives.h>
#include <meshtorch/launch.h>
#include <meshtorch/process_group.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace mt = meshtorch;

namespace {

constexpr int kRanks = 4;

struct Subject {
  const char* name;
  at::Tensor (*call)(const at::Tensor&);
};
constexpr std::array<Subject, 4> kSubjects{{
    {"all_reduce", [](const at::Tensor& t) { return mt::all_reduce(t, mt::ReduceOp::sum, {}); }},
    {"all_gather", [](const at::Tensor& t) { return mt::all_gather_tensor(t, 0, {}); }},
    {"reduce_scatter",
     [](const at::Tensor& t) { return mt::reduce_scatter_tensor(t, mt::ReduceOp::sum, 0, {}); }},
    {"barrier",
     [](const at::Tensor& t) {
       mt::barrier();
       return t;
     }},
}};

void repeat(std::int64_t times, const Subject& subject, const at::Tensor& input) {
  for (std::int64_t i = 0; i < times; ++i) mt::wait_tensor(subject.call(input));
}

// Rank 0 of a world: its time is reported.
void measure(benchmark::State& state, const Subject& subject, const at::Tensor& input) {
  mt::barrier();
  for (auto _ : state) mt::wait_tensor(subject.call(input));
}

at::Tensor input_of(std::int64_t bytes) { return at::ones({bytes / 4}, at::kFloat); }

void over_threads(benchmark::State& state, const Subject& subject, std::int64_t bytes) {
  mt::spawn(kRanks, [&](int rank) {
    const at::Tensor input = input_of(bytes);
    if (rank == 0) return measure(state, subject, input);
    mt::barrier();
    repeat(static_cast<std::int64_t>(state.max_iterations), subject, input);
  });
}

// Rank 0 tells the other processes what to run and how often.
at::Tensor order(std::int64_t subject, std::int64_t bytes, std::int64_t times) {
  return mt::wait_tensor(mt::broadcast(at::tensor({subject, bytes, times}, at::kLong), 0, {}));
}

void over_processes(benchmark::State& state, std::size_t subject, std::int64_t bytes) {
  order(static_cast<std::int64_t>(subject), bytes, static_cast<std::int64_t>(state.max_iterations));
  measure(state, kSubjects[subject], input_of(bytes));
}

int serve_orders() {
  for (;;) {
    const at::Tensor todo = order(-1, 0, 0);
    const auto* numbers = todo.const_data_ptr<std::int64_t>();
    if (numbers[0] < 0) return 0;
    const at::Tensor input = input_of(numbers[1]);
    mt::barrier();
    repeat(numbers[2], kSubjects[static_cast<std::size_t>(numbers[0])], input);
  }
}

void join(const std::string& meeting_place, int rank) {
  at::set_num_threads(1);
  mt::init_process_group({.backend = "gloo",
                          .init_method = "file://" + meeting_place,
                          .rank = rank,
                          .world_size = kRanks,
                          .timeout = std::chrono::minutes(10)});
}

void start_process(char* program, const std::string& meeting_place, int rank) {
  if (fork() != 0) return;
  const std::string number = std::to_string(rank);
  execl("/proc/self/exe", program, "--rank", number.c_str(), meeting_place.c_str(), nullptr);
  _exit(127);
}

void register_all() {
  for (const std::int64_t bytes : {16, 1 << 10, 1 << 16, 1 << 20}) {
    for (std::size_t s = 0; s < kSubjects.size(); ++s) {
      const std::string name = kSubjects[s].name;
      if (name == "barrier" && bytes > 16) continue;
      const std::string size = name == "barrier" ? "" : "/" + std::to_string(bytes) + "B";
      benchmark::RegisterBenchmark((name + size + "/threads").c_str(),
                                   [=](benchmark::State& state) { over_threads(state, kSubjects[s], bytes); })
          ->UseRealTime()
          ->Unit(benchmark::kMicrosecond);
      benchmark::RegisterBenchmark((name + size + "/gloo").c_str(),
                                   [=](benchmark::State& state) { over_processes(state, s, bytes); })
          ->UseRealTime()
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--rank") {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // a worker never outlives rank 0
    join(argv[3], std::atoi(argv[2]));
    return serve_orders();
  }
  const std::string meeting_place =
      (std::filesystem::temp_directory_path() / ("meshtorch_benchmark_" + std::to_string(getpid()))).string();
  for (int rank = 1; rank < kRanks; ++rank) start_process(argv[0], meeting_place, rank);
  join(meeting_place, 0);
  benchmark::Initialize(&argc, argv);
  register_all();
  benchmark::RunSpecifiedBenchmarks();
  order(-1, 0, 0);
  mt::destroy_process_group();
  while (wait(nullptr) > 0) continue;
  std::filesystem::remove(meeting_place);
  return 0;
}

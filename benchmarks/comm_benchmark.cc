// The time of one collective over 2 and 4 ranks: threads of this process, and processes that share memory or
// use gloo, of which this one is rank 0; and of a plain copy, the limit.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
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
#include <string>
#include <vector>

namespace mt = meshtorch;

namespace {

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
// 16 floats, 64 KiB, 16 MB.
constexpr std::array<std::int64_t, 3> kSizes{64, 1 << 16, 16 << 20};

void repeat(std::int64_t times, const Subject& subject, const at::Tensor& input) {
  for (std::int64_t i = 0; i < times; ++i) mt::wait_tensor(subject.call(input));
}

// Rank 0 of a world: its time is reported.
void measure(benchmark::State& state, const Subject& subject, const at::Tensor& input) {
  mt::barrier();
  for (auto _ : state) mt::wait_tensor(subject.call(input));
}

at::Tensor input_of(std::int64_t bytes) { return at::ones({bytes / 4}, at::kFloat); }

void over_threads(benchmark::State& state, int ranks, const Subject& subject, std::int64_t bytes) {
  mt::spawn(ranks, [&](int rank) {
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

void join(const std::string& backend, const std::string& meeting_place, int rank, int ranks) {
  at::set_num_threads(1);
  mt::init_process_group({.backend = backend,
                          .init_method = "file://" + meeting_place,
                          .rank = rank,
                          .world_size = ranks,
                          .timeout = std::chrono::minutes(10)});
}

void start_process(char* program, const std::string& backend, const std::string& meeting_place, int rank,
                   int ranks) {
  if (fork() != 0) return;
  const std::string number = std::to_string(rank);
  const std::string count = std::to_string(ranks);
  execl("/proc/self/exe", program, "--rank", number.c_str(), count.c_str(), backend.c_str(),
        meeting_place.c_str(), nullptr);
  _exit(127);
}

// The world of processes that this one is rank 0 of.
struct ProcessWorld {
  std::string backend;
  int ranks = 0;
  std::string meeting_place;
} world;
char* program = nullptr;

void leave_world() {
  if (world.ranks == 0) return;
  order(-1, 0, 0);
  mt::destroy_process_group();
  while (wait(nullptr) > 0) continue;
  std::filesystem::remove(world.meeting_place);
  world = {};
}

void enter_world(const std::string& backend, int ranks) {
  if (world.backend == backend && world.ranks == ranks) return;
  leave_world();
  const auto place =
      std::filesystem::temp_directory_path() / ("meshtorch_benchmark_" + std::to_string(getpid()));
  world = {backend, ranks, place.string()};
  for (int rank = 1; rank < ranks; ++rank) start_process(program, backend, world.meeting_place, rank, ranks);
  join(backend, world.meeting_place, 0, ranks);
}

// Benchmarks run in the order in which they are registered: the worlds come one after the other.
void over_processes(benchmark::State& state, const std::string& backend, int ranks, std::size_t subject,
                    std::int64_t bytes) {
  enter_world(backend, ranks);
  order(static_cast<std::int64_t>(subject), bytes, static_cast<std::int64_t>(state.max_iterations));
  measure(state, kSubjects[subject], input_of(bytes));
}

template <class Run>
void register_all(const std::string& backend, int ranks, const Run& run) {
  for (const std::int64_t bytes : kSizes) {
    for (std::size_t s = 0; s < kSubjects.size(); ++s) {
      std::string name = std::string(kSubjects[s].name) + "/" + std::to_string(ranks) + "ranks";
      if (kSubjects[s].name != std::string("barrier")) {
        name += "/" + std::to_string(bytes) + "B";
      } else if (bytes != kSizes[0]) {
        continue;
      }
      benchmark::RegisterBenchmark((name + "/" + backend).c_str(),
                                   [=](benchmark::State& state) { run(state, s, bytes); })
          ->UseRealTime()
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

void copy(benchmark::State& state, std::int64_t bytes) {
  const at::Tensor from = input_of(bytes);
  const at::Tensor to = at::empty_like(from);
  for (auto _ : state) to.copy_(from);
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  if (argc == 6 && std::string(argv[1]) == "--rank") {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // a worker never outlives rank 0
    join(argv[4], argv[5], std::atoi(argv[2]), std::atoi(argv[3]));
    const int result = serve_orders();
    mt::destroy_process_group();
    return result;
  }
  program = argv[0];
  benchmark::Initialize(&argc, argv);
  for (const std::int64_t bytes : kSizes) {
    benchmark::RegisterBenchmark(("copy/" + std::to_string(bytes) + "B").c_str(),
                                 [=](benchmark::State& state) { copy(state, bytes); })
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
  }
  for (const int ranks : {2, 4}) {
    register_all("threads", ranks, [ranks](benchmark::State& state, std::size_t subject, std::int64_t bytes) {
      over_threads(state, ranks, kSubjects[subject], bytes);
    });
    for (const char* backend : {"shm", "gloo"}) {
      register_all(backend, ranks, [=](benchmark::State& state, std::size_t subject, std::int64_t bytes) {
        over_processes(state, backend, ranks, subject, bytes);
      });
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  leave_world();
  return 0;
}

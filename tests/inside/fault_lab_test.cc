// Programs of thread ranks under orders that are drawn from a seed, and with a fault at a drawn point:
// without one they compute what they always do; with one every rank says which rank failed, and nobody hangs.
// A failure prints its seed, which brings the same run again.
#include "liveness/fault_lab.h"

#include <meshtorch/checkpoint.h>
#include <unistd.h>

#include <filesystem>
#include <numeric>

#include "data_parallel_training.h"
#include "rank_data.h"

namespace meshtorch::testing {
using namespace internal;
namespace {

namespace fs = std::filesystem;

constexpr int kThreads = 3;

// A seed of the user's, to have one run again, or this many others.
std::vector<std::uint64_t> seeds() {
  if (const char* given = std::getenv("MESHTORCH_FAULT_SEED")) return {std::strtoull(given, nullptr, 10)};
  const char* count = std::getenv("MESHTORCH_FAULT_SEEDS");
  std::vector<std::uint64_t> all(count == nullptr ? 4 : std::strtoull(count, nullptr, 10));
  std::iota(all.begin(), all.end(), 1);
  return all;
}

// What a program gives on one rank, equal whenever it runs.
struct Program {
  std::string name;
  std::function<torch::Tensor(int rank)> run;
};

torch::Tensor collectives(int rank) {
  const torch::Tensor mine = sample(rank, {6});
  torch::Tensor all = mt::wait_tensor(mt::all_reduce(mine, "sum", {}));
  all = all + mt::wait_tensor(mt::all_gather_tensor(mine, 0, {})).sum();
  // Beyond a stage: ranks read each other in place, and meet again in the middle.
  const torch::Tensor large = mt::wait_tensor(mt::all_reduce(sample(rank, {40000}), "sum", {}));
  mt::barrier();
  return all + large.sum() + mt::wait_tensor(mt::broadcast(mine, 1, {}));
}

torch::Tensor redistributions(int) {
  const mt::DeviceMesh mesh = line(kThreads);
  auto tensor = mt::distribute_tensor(numbers({7, 5}), mesh, {mt::Shard(0)});
  tensor = tensor.redistribute({mt::Shard(1)});
  const mt::DTensor product = torch::mm(tensor, tensor.t());
  return product.full_tensor() + tensor.full_tensor().sum();
}

torch::Tensor training_step(int) {
  Mlp model = filled(Mlp(6, 9));
  mt::parallelize_module(*model, line(kThreads),
                         {{"up", mt::ColwiseParallel()}, {"down", mt::RowwiseParallel()}});
  torch::optim::SGD sgd(model->parameters(), 0.1);
  torch::Tensor loss;
  for (int step = 0; step < 2; ++step) {
    sgd.zero_grad();
    loss = model(numbers({4, 6}, torch::kDouble, step)).square().mean();
    loss.backward();
    sgd.step();
  }
  return whole_of(loss);
}

torch::Tensor sharded_step(int rank) {
  const mt::DeviceMesh mesh = batches(kThreads);
  Tower tower = filled(Tower(6, 5, 2));
  for (Mlp& layer : tower->layers) mt::fully_shard(*layer, mesh);
  mt::fully_shard(*tower, mesh);
  tower(numbers({2, 6}, torch::kDouble, rank)).square().mean().backward();
  return whole_of(tower->layers[0]->up->weight.grad());
}

std::string checkpoint_directory() {
  return (fs::temp_directory_path() / ("meshtorch_lab_" + std::to_string(getpid()))).string();
}

torch::Tensor checkpoints(int) {
  const mt::DeviceMesh mesh = line(kThreads);
  const auto saved = mt::distribute_tensor(numbers({7, 3}), mesh, {mt::Shard(0)});
  mt::checkpoint::save(checkpoint_directory(), mt::checkpoint::State().add("x", saved));
  const auto loaded = mt::zeros({7, 3}, mesh, {mt::Shard(1)});
  mt::checkpoint::load(checkpoint_directory(), mt::checkpoint::State().add("x", loaded));
  return loaded.full_tensor();
}

const std::vector<Program>& programs() {
  static const std::vector<Program> all{{"collectives", collectives},
                                        {"redistributions", redistributions},
                                        {"training", training_step},
                                        {"sharded", sharded_step},
                                        {"checkpoints", checkpoints}};
  return all;
}

// One run: what each rank computed or was told, and what the lab saw.
struct LabRun {
  std::vector<torch::Tensor> results = std::vector<torch::Tensor>(kThreads);
  std::vector<std::string> told = std::vector<std::string>(kThreads);
  int failed_rank = -1;
  std::uint64_t trace = 0;
  std::uint64_t calls = 0;  // of the rank that made most
  bool was_stuck = false;
};

LabRun run_under(SeededSchedule& schedule, const Program& program) {
  LabRun seen;
  try {
    mt::spawn(kThreads, [&](int rank) {
      const std::shared_ptr<void> retires(nullptr, [&, rank](void*) { schedule.retire(rank); });
      try {
        seen.results[static_cast<std::size_t>(rank)] = program.run(rank);
      } catch (const std::exception& error) {
        seen.told[static_cast<std::size_t>(rank)] = error.what();
        throw;
      }
    });
  } catch (const mt::RankError& error) {
    seen.failed_rank = error.rank();
  }
  seen.trace = schedule.trace();
  for (int rank = 0; rank < kThreads; ++rank) seen.calls = std::max(seen.calls, schedule.calls_of(rank));
  seen.was_stuck = schedule.was_stuck();
  return seen;
}

class Lab : public ::testing::TestWithParam<Program> {
 protected:
  void SetUp() override {
    if (ranks_are_processes()) GTEST_SKIP() << "the lab orders ranks that are threads";
  }
  ~Lab() override { fs::remove_all(checkpoint_directory()); }
};

TEST_P(Lab, AnyOrderOfRanksGivesTheSame) {
  std::vector<torch::Tensor> expected(kThreads);
  mt::spawn(kThreads, [&](int rank) { expected[static_cast<std::size_t>(rank)] = GetParam().run(rank); });
  for (const std::uint64_t seed : seeds()) {
    SCOPED_TRACE("MESHTORCH_FAULT_SEED=" + std::to_string(seed));
    SeededSchedule schedule(seed, kThreads);
    const LabRun seen = run_under(schedule, GetParam());
    EXPECT_EQ(seen.failed_rank, -1) << seen.told[0] << seen.told[1] << seen.told[2];
    EXPECT_FALSE(seen.was_stuck);
    for (std::size_t rank = 0; rank < kThreads; ++rank)
      EXPECT_TRUE(is_equal(seen.results[rank], expected[rank]));
  }
}

TEST_P(Lab, ASeedGivesTheSameOrderAgain) {
  std::array<std::uint64_t, 2> traces{};
  for (std::uint64_t& trace : traces) {
    SeededSchedule schedule(7, kThreads);
    trace = run_under(schedule, GetParam()).trace;
  }
  EXPECT_EQ(traces[0], traces[1]);
}

TEST_P(Lab, AFaultAtAnyCallIsToldToEveryRankByItsName) {
  std::uint64_t calls = 0;
  {
    SeededSchedule schedule(1, kThreads);
    calls = run_under(schedule, GetParam()).calls;
  }
  for (const std::uint64_t seed : seeds()) {
    SCOPED_TRACE("MESHTORCH_FAULT_SEED=" + std::to_string(seed));
    const PlannedFault fault = PlannedFault::drawn(seed, kThreads, calls);
    SeededSchedule schedule(seed, kThreads, fault);
    const LabRun seen = run_under(schedule, GetParam());
    EXPECT_EQ(seen.failed_rank, fault.rank);
    EXPECT_FALSE(seen.was_stuck);
    const std::string words =
        c10::str("a fault of the lab: rank ", fault.rank, " at its collective ", fault.call);
    for (int rank = 0; rank < kThreads; ++rank) {
      const std::string& told = seen.told[static_cast<std::size_t>(rank)];
      // A rank that had nothing more to wait for has its result.
      const bool is_done = told.empty() && seen.results[static_cast<std::size_t>(rank)].defined();
      EXPECT_TRUE(is_done || told.find(words) != std::string::npos) << "rank " << rank << ": " << told;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Programs, Lab, ::testing::ValuesIn(programs()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace meshtorch::testing

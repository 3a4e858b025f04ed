// Memory stays flat over many worlds made and destroyed, and over many steps of a training. MESHTORCH_WORLDS
// and MESHTORCH_STEPS give the numbers of long runs.
#include <malloc.h>
#include <unistd.h>

#include <fstream>

#include "transformer_block.h"

namespace meshtorch::testing {
namespace {

std::int64_t number_from(const char* variable, std::int64_t usual) {
  const char* given = std::getenv(variable);
  return given == nullptr ? usual : std::atoll(given);
}

// What the process holds, in KiB, after giving back what it can.
std::int64_t held_memory() {
  malloc_trim(0);
  std::ifstream status("/proc/self/statm");
  std::int64_t pages = 0;
  std::int64_t resident = 0;
  status >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE) / 1024;
}

// Far below what one object kept of each round would be, far above the noise of allocators.
constexpr std::int64_t kNoise = 12 << 10;

TEST(FlatMemory, OfWorldsThatAreMadeAndDestroyed) {
  const auto world = [] {
    on_ranks(2, [](int) {
      const mt::DeviceMesh mesh = line(2);
      const auto tensor = mt::distribute_tensor(numbers({64, 64}), mesh, {mt::Shard(0)});
      EXPECT_TRUE(torch::mm(tensor, tensor).sum().defined());
    });
  };
  for (int i = 0; i < 20; ++i) world();
  const std::int64_t before = held_memory();
  const std::int64_t worlds = number_from("MESHTORCH_WORLDS", 150);
  for (std::int64_t i = 0; i < worlds; ++i) world();
  EXPECT_LT(held_memory() - before, kNoise) << "KiB more after " << worlds << " worlds";
}

TEST(FlatMemory, OfSteps) {
  on_ranks(2, [](int rank) {
    Mlp model = filled(Mlp(16, 32));
    mt::parallelize_module(*model, line(2), {{"up", mt::ColwiseParallel()}, {"down", mt::RowwiseParallel()}});
    torch::optim::AdamW adam(model->parameters(), torch::optim::AdamWOptions(1e-3));
    const auto step = [&](std::int64_t i) {
      adam.zero_grad();
      model(numbers({8, 16}, torch::kDouble, i % 7)).square().mean().backward();
      adam.step();
    };
    for (int i = 0; i < 50; ++i) step(i);
    mt::barrier();
    const std::int64_t before = held_memory();
    const std::int64_t steps = number_from("MESHTORCH_STEPS", 300);
    for (std::int64_t i = 0; i < steps; ++i) step(i);
    mt::barrier();
    EXPECT_LT(held_memory() - before, kNoise) << "KiB more after " << steps << " steps, rank " << rank;
  });
}

}  // namespace
}  // namespace meshtorch::testing

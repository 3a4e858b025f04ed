// Small pieces of work on one rank of a fake world, counted by callgrind one after the other: see guard.py.
#include <meshtorch/meshtorch.h>
#include <torch/torch.h>
#include <valgrind/callgrind.h>

#include <functional>
#include <string_view>

namespace mt = meshtorch;

namespace {

constexpr int kWarmUp = 20;
constexpr int kTimes = 50;

// A planted slowdown does every third to fourth piece twice: 30 % more.
void count(const char* name, bool is_planted, const std::function<void()>& work) {
  for (int i = 0; i < kWarmUp; ++i) work();
  CALLGRIND_ZERO_STATS;
  CALLGRIND_START_INSTRUMENTATION;
  for (int i = 0; i < kTimes; ++i) {
    work();
    if (is_planted && i % 10 < 3) work();
  }
  CALLGRIND_STOP_INSTRUMENTATION;
  CALLGRIND_DUMP_STATS_AT(name);
}

}  // namespace

int main(int argc, char** argv) {
  const bool is_planted = argc > 1 && std::string_view(argv[1]) == "--planted";
  at::set_num_threads(1);
  mt::init_process_group({.backend = "fake", .init_method = "tcp://none:0", .rank = 0, .world_size = 4});
  {
    const auto mesh = mt::init_device_mesh(torch::kCPU, {4});
    const mt::DTensor a = mt::ones({8, 8}, mesh, {mt::Shard(0)});
    const mt::DTensor b = mt::ones({8, 8}, mesh, {mt::Shard(0)});
    const mt::DTensor weight = mt::ones({8, 8}, mesh, {mt::Shard(0)}, torch::requires_grad());
    count("add", is_planted, [&] { torch::add(a, b); });
    count("add_", is_planted, [&] { a.add_(b); });
    count("view", is_planted, [&] { a.view({64}); });
    count("sum", is_planted, [&] { a.sum(1); });
    count("redistribute", is_planted, [&] { a.redistribute(mesh, {mt::Replicate()}); });
    count("backward", is_planted, [&] {
      weight.mutable_grad().reset();
      (weight * a).backward(b);
    });
  }
  mt::destroy_process_group();
}

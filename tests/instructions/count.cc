// Small pieces of work on one rank of a fake world, counted by callgrind one after the other: see guard.py.
#include <meshtorch/meshtorch.h>
#include <torch/torch.h>
#include <valgrind/callgrind.h>

#include <functional>
#include <string_view>

#include "../../benchmarks/small_step.h"

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

// What meshtorch adds to work that can be done by hand on the shards.
void count_over_by_hand(bool is_planted) {
  mt::init_process_group(
      {.backend = "fake", .init_method = "tcp://none:0", .rank = 0, .world_size = small_step::kRanks});
  {
    const auto mesh = mt::init_device_mesh(torch::kCPU, {small_step::kRanks});
    small_step::Step step(mesh);
    small_step::StepByHand by_hand;
    count("step", is_planted, [&] { step.run(); });
    count("step_by_hand", is_planted, [&] { by_hand.run(); });
    const small_step::ManyParameters split(&mesh, /*count=*/10);
    const small_step::ManyParameters plain(nullptr, /*count=*/10);
    count("adamw", is_planted, [&] { split.optimizer->step(); });
    count("adamw_by_hand", is_planted, [&] { plain.optimizer->step(); });
  }
  mt::destroy_process_group();
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
    const mt::DTensor input = mt::ones({2, 4, 8}, mesh, {mt::Replicate()});
    const mt::DTensor gradient = mt::ones({2, 4, 8}, mesh, {mt::Shard(2)});
    count("linear", is_planted, [&] {
      weight.mutable_grad().reset();
      torch::linear(input, weight).backward(gradient);
    });
    count("backward", is_planted, [&] {
      weight.mutable_grad().reset();
      (weight * a).backward(b);
    });
  }
  mt::destroy_process_group();
  count_over_by_hand(is_planted);
}

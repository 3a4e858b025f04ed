// What a distributed tensor adds to the cost of an operator, plain and distributed side by side in one run.
#include <benchmark/benchmark.h>
#include <meshtorch/meshtorch.h>
#include <torch/torch.h>

namespace mt = meshtorch;

namespace {

// One rank of a world of two that does not communicate: what is measured is meshtorch's own work.
struct Inputs {
  torch::Tensor a, b, x, w;
};

Inputs plain() {
  return {torch::randn({8, 16}), torch::randn({8, 16}), torch::randn({8, 16}), torch::randn({16, 4})};
}

Inputs distributed() {
  const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2});
  const auto split = [&](const torch::Tensor& local, const mt::Placement& p) {
    return mt::DTensor::from_local(local, mesh, {p});
  };
  const Inputs local = plain();
  return {split(local.a, mt::Shard(0)), split(local.b, mt::Shard(0)), split(local.x, mt::Shard(0)),
          split(local.w, mt::Replicate())};
}

using Operator = void (*)(const Inputs&);

void run(benchmark::State& state, Operator op, Inputs (*make)()) {
  const torch::NoGradGuard no_grad;
  const Inputs inputs = make();
  for (auto _ : state) op(inputs);
}

void add(const Inputs& in) { benchmark::DoNotOptimize(in.a + in.b); }
void mm(const Inputs& in) { benchmark::DoNotOptimize(torch::mm(in.x, in.w)); }
void relu(const Inputs& in) { benchmark::DoNotOptimize(torch::relu(in.a)); }
void add_in_place(const Inputs& in) { in.a.add_(in.b); }
void view(const Inputs& in) { benchmark::DoNotOptimize(in.a.view({-1, 4, 4})); }
void sum(const Inputs& in) { benchmark::DoNotOptimize(in.a.sum()); }

}  // namespace

int main(int argc, char** argv) {
  torch::set_num_threads(1);
  mt::init_process_group({.backend = "fake", .rank = 0, .world_size = 2});
  const std::pair<const char*, Operator> operators[] = {
      {"add", add}, {"mm", mm}, {"relu", relu}, {"add_", add_in_place}, {"view", view}, {"sum", sum}};
  for (const auto& [name, op] : operators) {
    benchmark::RegisterBenchmark((std::string(name) + "/plain").c_str(), run, op, plain);
    benchmark::RegisterBenchmark((std::string(name) + "/distributed").c_str(), run, op, distributed);
  }
  benchmark::RegisterBenchmark("from_local", [](benchmark::State& state) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2});
    const torch::Tensor local = torch::randn({8, 16});
    for (auto _ : state) benchmark::DoNotOptimize(mt::DTensor::from_local(local, mesh, {mt::Shard(0)}));
  });
  benchmark::RegisterBenchmark("redistribute/S(0) to R, no communication", [](benchmark::State& state) {
    const torch::Tensor x = distributed().a;
    for (auto _ : state) benchmark::DoNotOptimize(mt::DTensor(x).redistribute({mt::Replicate()}));
  });
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}

// What the test of two hosts starts on each: trains a layer that is split over all ranks, for some steps or
// until something happens, and says what it was told; or lets the last rank differ, and goes on.
//   two_hosts_program <steps>|differ
#include <meshtorch/meshtorch.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>

namespace mt = meshtorch;

namespace {

double train(int steps) {
  const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {mt::get_world_size()}, {"tp"});
  torch::manual_seed(1);
  mt::nn::Linear layer(8, 8);
  mt::parallelize_module(*layer, mesh, {{"", mt::ColwiseParallel({.output_layouts = mt::Replicate()})}});
  torch::optim::SGD sgd(layer->parameters(), 0.1);
  double loss = 0;
  for (int step = 0; step < steps; ++step) {
    sgd.zero_grad();
    const torch::Tensor error = layer(torch::ones({4, 8})).square().mean();
    error.backward();
    sgd.step();
    loss = mt::is_dtensor(error) ? mt::DTensor(error).full_tensor().item<double>() : error.item<double>();
    if (step != 3) continue;
    const std::string backend = mt::get_backend();
    std::printf("rank %d of %d on %s trains\n", mt::get_rank(), mt::get_world_size(), backend.c_str());
    std::fflush(stdout);
  }
  return loss;
}

// The last rank calls something else. What all were told, on one line, and what they sum up to afterwards.
void differ() {
  const bool is_last = mt::get_rank() + 1 == mt::get_world_size();
  const torch::Tensor x = torch::ones({4});
  try {
    mt::wait_tensor(is_last ? mt::all_gather_tensor(x, 0, {}) : mt::all_reduce(x, "sum", {}));
  } catch (const c10::Error& error) {
    std::string told = error.what_without_backtrace();
    for (char& c : told) c = c == '\n' ? '|' : c;
    std::printf("differ: %s\n", told.c_str());
  }
  std::printf("sum %g\n", mt::wait_tensor(mt::all_reduce(x, "sum", {}))[0].item<double>());
}

}  // namespace

int main(int, char** argv) {
  try {
    mt::init_process_group({.timeout = std::chrono::seconds(5)});
    if (std::string(argv[1]) == "differ") {
      differ();
      mt::destroy_process_group();
      return 0;
    }
    std::printf("loss %.6f\n", train(std::atoi(argv[1])));
    mt::destroy_process_group();
    return 0;
  } catch (const std::exception& error) {
    std::printf("was told: %s\n", error.what());
    return 3;
  }
}

// The memory of a rank that trains a sharded model, measured and worked out; and training under a limit that
// the whole model does not fit in.
//
//   meshtorch-run -n 4 sharded_memory               prints both
//   meshtorch-run -n 4 sharded_memory --limit 448   with so many MiB for data beside those of the libraries
//   sharded_memory --whole --limit 448              one process with all of it: ends well if it does not fit
#include <meshtorch/meshtorch.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <cstdlib>
#include <fstream>
#include <iostream>

namespace mt = meshtorch;

namespace {

constexpr int64_t kWidth = 512;
constexpr int64_t kDepth = 16;
constexpr int64_t kRows = 8;
constexpr int kSteps = 3;

struct LayerImpl : torch::nn::Module {
  LayerImpl() : up(kWidth, 4 * kWidth), down(4 * kWidth, kWidth) {
    register_module("up", up);
    register_module("down", down);
  }
  torch::Tensor forward(torch::Tensor x) { return x + down(torch::gelu(up(x))); }
  mt::nn::Linear up, down;
};
MESHTORCH_MODULE(Layer);

struct NetImpl : torch::nn::Module {
  // `shard` is called on each layer before the next is made, so that at most one is whole.
  explicit NetImpl(const std::function<void(torch::nn::Module&)>& shard) {
    for (int64_t i = 0; i < kDepth; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), Layer()));
      shard(*layers.back());
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (Layer& layer : layers) x = layer(x);
    return x;
  }
  std::vector<Layer> layers;
};
MESHTORCH_MODULE(Net);

double mebibytes(std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

// A number of /proc/self/status, in bytes.
std::int64_t status(const std::string& name) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    std::int64_t kibibytes = 0;
    if (word == name + ":" && file >> kibibytes) return kibibytes << 10;
  }
  return 0;
}

void limit_data(std::int64_t more) {
  rlimit limit{};
  getrlimit(RLIMIT_DATA, &limit);
  limit.rlim_cur = static_cast<rlim_t>(status("VmData") + more);
  TORCH_CHECK(setrlimit(RLIMIT_DATA, &limit) == 0, "the limit of data cannot be set");
}

double train(Net net, int64_t seed) {
  torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(1e-3));
  double loss = 0;
  for (int step = 0; step < kSteps; ++step) {
    torch::manual_seed(100 * seed + step);
    adam.zero_grad();
    const torch::Tensor y = net(torch::randn({kRows, kWidth})).square().mean();
    y.backward();
    adam.step();
    loss = y.item<double>();
  }
  return loss;
}

int train_whole() {
  try {
    torch::manual_seed(1);
    train(Net([](torch::nn::Module&) {}), 0);
  } catch (const std::exception& error) {
    std::cout << "the whole model does not fit\n";
    return EXIT_SUCCESS;
  }
  std::cout << "the whole model fits: the limit says nothing\n";
  return EXIT_FAILURE;
}

void train_sharded(int rank) {
  const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {mt::get_world_size()}, {"dp"});
  mt::PeakMemory peak;
  torch::manual_seed(1);
  Net net([&](torch::nn::Module& layer) { mt::fully_shard(layer, mesh, {.src_data_rank = std::nullopt}); });
  mt::fully_shard(*net, mesh, {.src_data_rank = std::nullopt});
  peak.restart();
  const double loss = train(net, rank);
  if (rank != 0) return;
  // Of a layer, what backward needs: its input, the hidden numbers before and after gelu.
  const mt::MemoryEstimate given{.activations = kDepth * kRows * (kWidth + 8 * kWidth) * 4};
  const mt::RankMemory expected = mt::estimate_memory(*net, given)[0];
  const std::int64_t states = expected.parameters + expected.gradients + expected.optimizer;
  const std::int64_t sum = states + expected.replicas + expected.activations;
  std::cout << "a rank of " << mt::get_world_size() << ", MiB: states " << mebibytes(states)
            << " + the two largest groups " << mebibytes(expected.replicas) << " + activations "
            << mebibytes(expected.activations) << " = " << mebibytes(sum) << "; measured peak of tensors "
            << mebibytes(peak.bytes()) << ", ratio "
            << static_cast<double>(peak.bytes()) / static_cast<double>(sum) << "; shared memory "
            << mebibytes(status("RssShmem")) << "\n"
            << "whole, states alone: " << mebibytes(states * mt::get_world_size()) << "\n"
            << "trained, loss " << loss << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  std::int64_t limit = 0;
  bool is_whole = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--whole") is_whole = true;
    if (word == "--limit" && i + 1 < argc) limit = std::atoll(argv[++i]) << 20;
  }
  torch::set_num_threads(1);
  if (is_whole) {
    limit_data(limit);
    return train_whole();
  }
  mt::run(0, [&](int rank) {
    if (limit > 0) limit_data(limit);
    train_sharded(rank);
  });
}

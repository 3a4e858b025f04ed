// Data parallelism over one axis, tensor parallelism over the other: 4 ranks, each with a quarter of a model.
#include <meshtorch/meshtorch.h>
#include <torch/torch.h>

#include <iostream>

namespace mt = meshtorch;

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width) : up(width, 4 * width), down(4 * width, width) {
    register_module("up", up);
    register_module("down", down);
  }
  torch::Tensor forward(torch::Tensor x) { return x + down(torch::gelu(up(x))); }
  mt::nn::Linear up, down;
};
MESHTORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl(int64_t width, int64_t depth) : head(width, 1) {
    for (int64_t i = 0; i < depth; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), Block(width)));
    register_module("head", head);
  }
  torch::Tensor forward(torch::Tensor x) {
    for (Block& block : blocks) x = block(x);
    return head(x);
  }
  std::vector<Block> blocks;
  mt::nn::Linear head;
};
MESHTORCH_MODULE(Net);

int main() {
  mt::run(4, [](int rank) {  // four threads; or the processes that meshtorch-run started
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    torch::manual_seed(1);
    Net net(64, 3);
    mt::parallelize_module(*net, mesh["tp"],
                           {{"block*.up", mt::ColwiseParallel()}, {"block*.down", mt::RowwiseParallel()}});
    for (Block& block : net->blocks) mt::fully_shard(*block, mesh["dp"]);
    mt::fully_shard(*net, mesh["dp"]);

    torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(1e-2));
    torch::manual_seed(
        10 + static_cast<std::uint64_t>(mesh["dp"].get_local_rank()));  // each dp rank: its own rows
    double first = 0, last = 0;
    for (int step = 0; step < 30; ++step) {
      const torch::Tensor x = torch::randn({32, 64}), y = x.sum(1, true) / 8;
      adam.zero_grad();
      const torch::Tensor loss = torch::mse_loss(net(x), y);
      loss.backward();
      adam.step();
      last = mt::all_reduce(loss.detach(), "avg", mesh["dp"]).item<double>();
      if (step == 0) first = last;
    }
    if (rank != 0) return;
    std::cout << mt::sharding_table(*net) << (last < first / 4 ? "the loss fell" : "the loss stayed") << "\n";
  });
}

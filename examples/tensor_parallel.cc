// A two-layer network made tensor-parallel by a plan, trained for a step on 2 thread ranks. docs/modules.md
// quotes it.
#include <meshtorch/meshtorch.h>
#include <torch/torch.h>

#include <iostream>

namespace mt = meshtorch;

// [a_model]
struct MlpImpl : torch::nn::Module {
  MlpImpl(int64_t width, int64_t hidden) : up(width, hidden), down(hidden, width) {
    register_module("up", up);
    register_module("down", down);
  }
  torch::Tensor forward(torch::Tensor x) { return down(torch::gelu(up(x))); }
  mt::nn::Linear up, down;
};
MESHTORCH_MODULE(Mlp);  // in the place of TORCH_MODULE(Mlp)
// [a_model]

int main() {
  mt::spawn(2, [](int rank) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2}, {"tp"});
    Mlp mlp(8, 16);
    // [a_plan]
    const mt::ParallelizePlan plan{{"up", mt::ColwiseParallel()}, {"down", mt::RowwiseParallel()}};
    mt::parallelize_module(*mlp, mesh, plan);
    // [a_plan]

    torch::optim::AdamW optimizer(mlp->parameters());
    const mt::CommDebugMode comm;
    mlp(torch::ones({4, 8}).requires_grad_()).square().mean().backward();
    optimizer.step();
    if (rank != 0) return;
    std::cout << mt::describe_plan(*mlp, plan) << "\n"
              << mt::sharding_table(*mlp) << "\n"
              << comm.module_table() << "\n"
              << mt::visualize_sharding(mlp->up->weight);
  });
}

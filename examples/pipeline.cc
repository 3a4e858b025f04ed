// Pipeline parallelism: 4 ranks, each with one stage of a model, by the schedule 1F1B.
#include <meshtorch/meshtorch.h>
#include <torch/torch.h>

#include <iostream>

namespace mt = meshtorch;

int main() {
  mt::run(4, [](int rank) {  // four threads; or the processes that meshtorch-run started
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {4}, {"pp"});
    torch::manual_seed(1);  // every rank makes the same model and the same batches
    torch::nn::Sequential model;
    for (int i = 0; i < 4; ++i) {
      model->push_back("linear" + std::to_string(i), torch::nn::Linear(32, 32));
      model->push_back("gelu" + std::to_string(i), torch::nn::GELU());
    }
    const torch::nn::Sequential part = mt::split(model, 4)[static_cast<std::size_t>(rank)];
    const mt::PipelineTable table = mt::make_pipeline_table("1F1B", {.ranks = 4, .microbatches = 8});
    mt::Pipeline pipeline(
        {mt::PipelineStage(part, rank, 4, mesh["pp"])}, table,
        [](const torch::Tensor& y, const torch::Tensor& target) { return torch::mse_loss(y, target); });

    torch::optim::AdamW adam(part->parameters(), torch::optim::AdamWOptions(1e-2));
    double first = 0, last = 0;
    for (int step = 0; step < 60; ++step) {
      const torch::Tensor x = torch::randn({64, 32}), target = torch::gelu(x);
      adam.zero_grad();
      const mt::PipelineResult result = pipeline.step({x}, target);  // x of rank 0, target of rank 3
      adam.step();
      if (result.loss.defined()) last = result.loss.item<double>();
      if (step == 0) first = last;
    }
    if (rank == 3) std::cout << (last < 0.6 * first ? "the loss fell" : "the loss stayed") << "\n";
  });
}

// The C++ half of test_llama_block.py: trains the same block under the same plan file and prints its losses.
//   llama_block PLAN RANKS STEPS
#include <meshtorch/meshtorch.h>
#include <torch/torch.h>

#include <fstream>
#include <iomanip>
#include <iostream>
#include <sstream>

namespace mt = meshtorch;

// B batch, S sequence, D width, H heads, K width of a head.
constexpr int64_t kBatch = 2, kSequence = 8, kWidth = 16, kHeads = 4, kHead = kWidth / kHeads, kHidden = 48;

torch::Tensor rotated(const torch::Tensor& x_BHSK) {
  const torch::Tensor angle_SK =
      torch::outer(torch::arange(kSequence, torch::kDouble),
                   torch::pow(10000.0, -torch::arange(0, kHead, 2, torch::kDouble) / kHead))
          .repeat({1, 2});
  const auto halves = x_BHSK.chunk(2, -1);
  return x_BHSK * angle_SK.cos() + torch::cat({-halves[1], halves[0]}, -1) * angle_SK.sin();
}

mt::nn::Linear linear(int64_t in, int64_t out) {
  return mt::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
}

struct AttentionImpl : torch::nn::Module {
  AttentionImpl()
      : wq(register_module("wq", linear(kWidth, kWidth))),
        wk(register_module("wk", linear(kWidth, kWidth))),
        wv(register_module("wv", linear(kWidth, kWidth))),
        wo(register_module("wo", linear(kWidth, kWidth))) {}
  torch::Tensor forward(torch::Tensor x_BSD) {
    const auto heads = [](const torch::Tensor& t) {
      return t.view({t.size(0), t.size(1), -1, kHead}).transpose(1, 2);
    };
    const torch::Tensor y_BHSK = torch::scaled_dot_product_attention(
        rotated(heads(wq(x_BSD))), rotated(heads(wk(x_BSD))), heads(wv(x_BSD)), {}, 0.0, /*is_causal=*/true);
    return wo(y_BHSK.transpose(1, 2).flatten(2));
  }
  mt::nn::Linear wq, wk, wv, wo;
};
MESHTORCH_MODULE(Attention);

struct FeedForwardImpl : torch::nn::Module {
  FeedForwardImpl()
      : w1(register_module("w1", linear(kWidth, kHidden))),
        w2(register_module("w2", linear(kHidden, kWidth))),
        w3(register_module("w3", linear(kWidth, kHidden))) {}
  torch::Tensor forward(torch::Tensor x) { return w2(torch::silu(w1(x)) * w3(x)); }
  mt::nn::Linear w1, w2, w3;
};
MESHTORCH_MODULE(FeedForward);

struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : attention_norm(register_module("attention_norm", norm())),
        attention(register_module("attention", Attention())),
        feed_forward_norm(register_module("feed_forward_norm", norm())),
        feed_forward(register_module("feed_forward", FeedForward())) {}
  torch::Tensor forward(torch::Tensor x) {
    x = x + attention(attention_norm(x));
    return x + feed_forward(feed_forward_norm(x));
  }
  static mt::nn::RMSNorm norm() { return mt::nn::RMSNorm(mt::nn::RMSNormOptions(kWidth).set_eps(1e-5)); }
  mt::nn::RMSNorm attention_norm;
  Attention attention;
  mt::nn::RMSNorm feed_forward_norm;
  FeedForward feed_forward;
};
MESHTORCH_MODULE(Block);

// Numbers that both languages can make.
torch::Tensor wave(torch::IntArrayRef shape, double phase) {
  const int64_t count = c10::multiply_integers(shape);
  return torch::sin(torch::arange(count, torch::kDouble) * 0.37 + phase).view(shape);
}

std::vector<double> train(const mt::ParallelizePlan& plan, int64_t ranks, int steps) {
  Block block;
  block->to(torch::kDouble);
  double phase = 0;
  for (auto& parameter : block->named_parameters()) {
    const torch::NoGradGuard no_grad;
    torch::Tensor& p = parameter.value();
    p.copy_(p.dim() == 1 ? 1 + 0.1 * wave(p.sizes(), phase) : 0.3 * wave(p.sizes(), phase));
    phase += 1;
  }
  mt::parallelize_module(*block, mt::init_device_mesh(torch::kCPU, {ranks}, {"tp"}), plan);
  torch::optim::AdamW optimizer(block->parameters(), torch::optim::AdamWOptions(1e-2));
  const torch::Tensor x = wave({kBatch, kSequence, kWidth}, 0.5);
  const torch::Tensor target = wave({kBatch, kSequence, kWidth}, 2.5);
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const torch::Tensor loss = torch::mse_loss(block(x), target);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

int main(int argc, char** argv) {
  TORCH_CHECK(argc == 4, "usage: llama_block PLAN RANKS STEPS");
  std::ifstream file(argv[1]);
  std::stringstream text;
  text << file.rdbuf();
  const mt::ParallelizePlan plan = mt::ParallelizePlan::from_json(text.str());
  const int ranks = std::stoi(argv[2]);
  const int steps = std::stoi(argv[3]);
  mt::spawn(ranks, [&](int rank) {
    const std::vector<double> losses = train(plan, ranks, steps);
    if (rank != 0) return;
    for (const double loss : losses) std::cout << std::setprecision(17) << loss << "\n";
  });
}

// The front door: 4 ranks as threads of this process, a distributed tensor, and a small model that trains as
// on one device.
#include <meshtorch/meshtorch.h>
#include <torch/torch.h>

#include <iomanip>
#include <iostream>
#include <sstream>

namespace mt = meshtorch;

namespace {

// Two layers, written for one device.
struct MlpImpl : torch::nn::Module {
  MlpImpl() {
    const torch::NoGradGuard no_grad;
    double scale = 1;
    for (auto& p : parameters())
      p.copy_(torch::sin(torch::arange(p.numel()) * (scale += 0.5)).view_as(p) / 4);
  }
  torch::Tensor forward(const torch::Tensor& x) { return down(torch::gelu(up(x))); }

  torch::nn::Linear up = register_module("up", torch::nn::Linear(16, 30));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(30, 4));
};
TORCH_MODULE(Mlp);

// Splits the hidden units over axis tp: 30 of them, which 2 ranks share evenly and 4 would not; both are
// fine.
void parallelize(Mlp model, const mt::DeviceMesh& mesh) {
  const auto place = [&](torch::Tensor& p, const mt::Placement& on_tp) {
    p.set_data(mt::distribute_tensor(p.detach(), mesh, {mt::Replicate(), on_tp}));
  };
  place(model->up->weight, mt::Shard(0));
  place(model->up->bias, mt::Shard(0));
  place(model->down->weight, mt::Shard(1));
  place(model->down->bias, mt::Replicate());
}

std::vector<double> train(Mlp model, const torch::Tensor& batch, const torch::Tensor& target) {
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.02));
  std::vector<double> losses;
  for (int step = 0; step < 30; ++step) {
    optimizer.zero_grad();
    const torch::Tensor loss = torch::mse_loss(model->forward(batch), target);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

// A title, then what each rank says, in order.
void tell(const std::string& title, const std::string& line) {
  for (int turn = 0; turn < mt::get_world_size(); ++turn) {
    if (turn == 0 && mt::get_rank() == 0) std::cout << "\n" << title << "\n";
    if (turn == mt::get_rank()) std::cout << "  rank " << turn << ": " << line << "\n";
    mt::barrier();
  }
}

void show_tensors(const mt::DeviceMesh& mesh) {
  // [snippet]
  // 5 rows over axis dp, 4 columns over axis tp: every torch:: function works on x, and its shape is the
  // whole one.
  const mt::DTensor x =
      mt::distribute_tensor(torch::arange(20.0).view({5, 4}), mesh, {mt::Shard(0), mt::Shard(1)});
  const torch::Tensor y = torch::relu(torch::mm(x, x.t()) - 100);
  const torch::Tensor whole = mt::full_tensor(y);
  // [snippet]
  tell("A tensor of shape [5, 4] on " + mesh.to_string(),
       c10::str("holds ", x.to_local().sizes(), "; relu(x x' - 100) sums to ", y.sum().item<double>()));
  if (mt::get_rank() == 0) std::cout << "\n" << mt::explain_redistribute(x, {mt::Replicate(), mt::Shard(0)});
  TORCH_CHECK(torch::equal(
      whole,
      torch::relu(torch::mm(torch::arange(20.0).view({5, 4}), torch::arange(20.0).view({5, 4}).t()) - 100)));
}

void show_training(const mt::DeviceMesh& mesh) {
  const torch::Tensor batch = torch::sin(torch::arange(7 * 16)).view({7, 16});
  const torch::Tensor target = torch::cos(torch::arange(7 * 4)).view({7, 4});
  const std::vector<double> alone = train(Mlp(), batch, target);

  Mlp model;
  parallelize(model, mesh);
  mt::CommDebugMode comm;  // counts this rank's collectives
  const auto split_batch = [&](const torch::Tensor& t) {
    return mt::distribute_tensor(t, mesh, {mt::Shard(0), mt::Replicate()});
  };
  const std::vector<double> together = train(model, split_batch(batch), split_batch(target));
  comm.stop();
  if (mt::get_rank() != 0) return;
  std::cout << "\nA model of two layers, its batch of 7 split over dp, its weights over tp; AdamW, 30 "
               "steps\n  step   one device   4 ranks\n";
  for (std::size_t step = 0; step < alone.size(); step += 7) {
    std::cout << std::setw(6) << step << std::fixed << std::setprecision(6) << std::setw(13) << alone[step]
              << std::setw(10) << together[step] << "\n";
    TORCH_CHECK(std::abs(alone[step] - together[step]) < 1e-4 * alone[step], "the losses differ");
  }
  std::cout << "\nWhat rank 0 communicated\n" << comm.table();
}

}  // namespace

int main() {
  // As threads of this process; as the processes of meshtorch-run or torchrun, if one of them starts it.
  mt::run(4, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    show_tensors(mesh);
    show_training(mesh);
  });
  std::cout << "\nall ranks agree\n";
}

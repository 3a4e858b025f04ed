// Every optimiser of LibTorch's C++ interface on distributed parameters, whole, split or both, takes the
// steps of one device.
#include "numbers.h"

namespace meshtorch::testing {
namespace {

namespace optim = torch::optim;
using torch::Tensor;
using Tensors = std::vector<Tensor>;
using Make = std::function<std::unique_ptr<optim::Optimizer>(const Tensors&)>;

template <class Optimizer, class Options>
Make made_of(const Options& options) {
  return [options](const Tensors& parameters) { return std::make_unique<Optimizer>(parameters, options); };
}

struct OptimizerCase {
  const char* name;
  Make make;
};

std::vector<OptimizerCase> optimizer_cases() {
  return {
      {"SGD", made_of<optim::SGD>(optim::SGDOptions(0.05).momentum(0.9).nesterov(true).weight_decay(0.1))},
      {"SGD_dampened", made_of<optim::SGD>(optim::SGDOptions(0.05).momentum(0.9).dampening(0.5))},
      {"Adam", made_of<optim::Adam>(optim::AdamOptions(0.05).amsgrad(true).weight_decay(0.1))},
      {"AdamW", made_of<optim::AdamW>(optim::AdamWOptions(0.05).amsgrad(true).weight_decay(0.1))},
      {"Adagrad", made_of<optim::Adagrad>(optim::AdagradOptions(0.05).lr_decay(0.1).weight_decay(0.1))},
      {"RMSprop", made_of<optim::RMSprop>(optim::RMSpropOptions(0.05).centered(true).momentum(0.5))},
      {"LBFGS", made_of<optim::LBFGS>(optim::LBFGSOptions(0.5).max_iter(4).history_size(3))},
      {"LBFGS_by_search",
       made_of<optim::LBFGS>(
           optim::LBFGSOptions(1).max_iter(4).history_size(3).line_search_fn("strong_wolfe"))},
  };
}

// A matrix, a line and a number, and the target of their squares.
Tensors parameters_of(const std::vector<mt::Placement>& placements, const mt::DeviceMesh& mesh) {
  Tensors made;
  const std::vector<std::vector<int64_t>> sizes{{5, 4}, {4}, {}};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const Tensor whole = numbers(sizes[i], torch::kDouble, static_cast<int64_t>(i) + 1) / 4;
    made.push_back(placements.empty() ? whole : mt::distribute_tensor(whole, mesh, {placements[i]}));
    made.back().requires_grad_();
  }
  return made;
}

double train(const Make& make, const Tensors& parameters, const Tensor& batch) {
  const auto optimizer = make(parameters);
  double loss = 0;
  const auto closure = [&] {
    optimizer->zero_grad();
    const Tensor error = torch::tanh(batch.mm(parameters[0]) + parameters[1]) * parameters[2] - 0.5;
    const Tensor sum = error.square().sum();
    sum.backward();
    loss = sum.item<double>();
    return sum;
  };
  for (int step = 0; step < 6; ++step) optimizer->step(closure);
  return loss;
}

class TorchOptimizers : public ::testing::TestWithParam<OptimizerCase> {};

TEST_P(TorchOptimizers, TakeTheStepsOfOneDevice) {
  on_ranks(3, [&](int) {
    const mt::DeviceMesh mesh = line(3);
    const Tensor rows = numbers({7, 5}, torch::kDouble, 9) / 4;
    const Tensors expected = parameters_of({}, mesh);
    const double loss = train(GetParam().make, expected, rows);
    const mt::Placement whole = mt::Replicate(), split = mt::Shard(0), columns = mt::Shard(1);
    for (const std::vector<mt::Placement>& placements : std::vector<std::vector<mt::Placement>>{
             {whole, whole, whole}, {split, split, whole}, {columns, split, whole}, {split, whole, whole}}) {
      for (const mt::Placement& of_batch : {whole, split}) {
        const Tensors actual = parameters_of(placements, mesh);
        const Tensor batch = mt::distribute_tensor(rows, mesh, {of_batch});
        EXPECT_NEAR(train(GetParam().make, actual, batch), loss, 1e-9);
        for (std::size_t i = 0; i < expected.size(); ++i)
          EXPECT_TRUE(is_close(mt::full_tensor(actual[i]).detach(), expected[i].detach(), 1e-9))
              << "parameter " << i << " " << mt::to_string(placements) << ", batch " << of_batch.to_string();
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Optimizers, TorchOptimizers, ::testing::ValuesIn(optimizer_cases()),
                         [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace meshtorch::testing

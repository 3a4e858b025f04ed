// Optimizers in checkpoints: training stopped on one mesh goes on on another as if it had not stopped.
#include <meshtorch/checkpoint.h>

#include "numbers.h"
#include "scratch_directory.h"

namespace meshtorch::testing {
namespace {

namespace cp = mt::checkpoint;
using mt::Replicate;
using mt::Shard;

torch::nn::Linear make_layer() {
  torch::nn::Linear layer(6, 5);
  layer->weight.set_data(numbers({5, 6}, torch::kDouble) / 4);
  layer->bias.set_data(numbers({5}, torch::kDouble) / 4);
  return layer;
}

void split(const torch::nn::Linear& layer, const mt::DeviceMesh& mesh, const mt::Placement& placement) {
  for (const torch::Tensor& p : layer->parameters())
    mt::replace_data(p, mt::distribute_tensor(p.detach(), mesh, {placement}));
}

template <class Input>
void train(torch::nn::Linear& layer, torch::optim::Optimizer& optimizer, const Input& input_of_step, int from,
           int to) {
  for (int step = from; step < to; ++step) {
    optimizer.zero_grad();
    layer(input_of_step(step)).square().mean().backward();
    optimizer.step();
  }
}

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)>;

struct OptimizerCase {
  const char* name;
  MakeOptimizer make;
};

const std::vector<OptimizerCase> kCases{
    {"Sgd",
     [](auto p) {
       return std::make_unique<torch::optim::SGD>(p,
                                                  torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true));
     }},
    {"PlainSgd", [](auto p) { return std::make_unique<torch::optim::SGD>(p, 0.1); }},
    {"Adam",
     [](auto p) {
       return std::make_unique<torch::optim::Adam>(p, torch::optim::AdamOptions(0.1).amsgrad(true));
     }},
    {"AdamW",
     [](auto p) { return std::make_unique<torch::optim::AdamW>(p, torch::optim::AdamWOptions(0.1)); }},
    {"Rmsprop",
     [](auto p) {
       return std::make_unique<torch::optim::RMSprop>(
           p, torch::optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
     }},
    {"Adagrad", [](auto p) { return std::make_unique<torch::optim::Adagrad>(p, 0.1); }}};

class CheckpointedOptimizer : public ::testing::TestWithParam<OptimizerCase> {};
INSTANTIATE_TEST_SUITE_P(, CheckpointedOptimizer, ::testing::ValuesIn(kCases),
                         [](const auto& each) { return std::string(each.param.name); });

TEST_P(CheckpointedOptimizer, GoesOnOnAnotherMeshAsIfItHadNotStopped) {
  const MakeOptimizer& make = GetParam().make;
  const std::string name = std::string("optimizer") + GetParam().name;
  const std::string directory = kept_directory(name);
  const auto batch = [](int step) { return numbers({4, 6}, torch::kDouble, step); };
  on_ranks(3, [&](int) {
    torch::nn::Linear layer = make_layer();
    split(layer, line(3), Shard(0));
    const auto optimizer = make(layer->parameters());
    train(
        layer, *optimizer, [&](int s) { return mt::distribute_tensor(batch(s), line(3), {Replicate()}); }, 0,
        4);
    optimizer->param_groups()[0].options().set_lr(0.05);
    cp::save(directory, cp::State().add("model", *layer).add("optimizer", *optimizer, *layer));
  });
  on_ranks(2, [&](int) {
    torch::nn::Linear plain = make_layer();
    const auto plain_optimizer = make(plain->parameters());
    train(plain, *plain_optimizer, batch, 0, 4);
    plain_optimizer->param_groups()[0].options().set_lr(0.05);
    train(plain, *plain_optimizer, batch, 4, 8);

    torch::nn::Linear layer(torch::nn::LinearOptions(6, 5));
    layer->to(torch::kDouble);
    split(layer, line(2), Replicate());
    const auto optimizer = make(layer->parameters());
    cp::load(directory, cp::State().add("model", *layer).add("optimizer", *optimizer, *layer));
    EXPECT_EQ(optimizer->param_groups()[0].options().get_lr(), 0.05);
    train(
        layer, *optimizer, [&](int s) { return mt::distribute_tensor(batch(s), line(2), {Shard(0)}); }, 4, 8);
    EXPECT_TRUE(is_close(mt::DTensor(layer->weight).full_tensor().detach(), plain->weight.detach(), 1e-12));
    EXPECT_TRUE(is_close(mt::DTensor(layer->bias).full_tensor().detach(), plain->bias.detach(), 1e-12));
  });
  remove_kept_directory(name);
}

TEST(CheckpointedOptimizerErrors, SayWhatDoesNotFit) {
  on_ranks(2, [](int) {
    const ScratchDirectory directory("optimizer_errors");
    torch::nn::Linear layer = make_layer();
    torch::nn::Linear other = make_layer();
    torch::optim::SGD sgd(layer->parameters(), 0.1);
    torch::optim::Adam adam(layer->parameters());
    cp::save(directory.path(), cp::State().add("optimizer", sgd, *layer));
    EXPECT_EQ(error_of([&] { cp::load(directory.path(), cp::State().add("optimizer", adam, *layer)); }),
              "meshtorch: the checkpoint has the state of SGD, not of Adam\n  in: \"optimizer\" of the "
              "state\n  do: "
              "load it into an optimizer of type SGD");
    EXPECT_EQ(error_of([&] { cp::save(directory.path(), cp::State().add("optimizer", sgd, *other)); }),
              "meshtorch: the optimizer has a parameter of shape [5, 6] that the module does not have\n  in: "
              "\"optimizer\" of the state\n  do: add the optimizer together with the module whose parameters "
              "it was "
              "made with");
    torch::optim::SGD one({layer->weight}, 0.1);
    EXPECT_EQ(error_of([&] { cp::load(directory.path(), cp::State().add("optimizer", one, *layer)); }),
              "meshtorch: group 0 of the optimizer has the parameters [\"weight\"], and "
              "[\"weight\",\"bias\"] in the "
              "checkpoint\n  in: \"optimizer\" of the state\n  do: make it with the same groups");
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<torch::Tensor>{layer->weight});
    groups.emplace_back(std::vector<torch::Tensor>{layer->bias});
    torch::optim::SGD two(groups, torch::optim::SGDOptions(0.1));
    EXPECT_EQ(error_of([&] { cp::load(directory.path(), cp::State().add("optimizer", two, *layer)); }),
              "meshtorch: the optimizer has 2 groups of parameters, and 1 in the checkpoint\n  in: "
              "\"optimizer\" of "
              "the state\n  do: make it with the same groups");
    torch::optim::LBFGS lbfgs(layer->parameters());
    EXPECT_EQ(error_of([&] { cp::State().add("optimizer", lbfgs, *layer); }),
              "meshtorch: checkpoints do not know the state of this optimizer\n  in: \"optimizer\" of the "
              "state\n  do: "
              "use SGD, Adam, AdamW, RMSprop or Adagrad, or add its tensors one by one");
  });
}

}  // namespace
}  // namespace meshtorch::testing

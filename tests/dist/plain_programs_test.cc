// Training programs in the form of PyTorch's C++ examples, with LibTorch's own modules, data loaders and
// optimisers: two calls more, one for a model and one for batches, split the batches over the ranks.
#include "numbers.h"

namespace meshtorch::testing {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

// What the two calls do; nothing in a program on one device.
struct Placing {
  std::function<void(nn::Module&)> model = [](nn::Module&) {};
  std::function<Tensor(const Tensor&)> batch = [](const Tensor& t) { return t; };
};

Placing data_parallel(const mt::DeviceMesh& mesh) {
  return {[mesh](nn::Module& model) { mt::distribute_module(model, mesh); },
          [mesh](const Tensor& t) { return mt::distribute_tensor(t, mesh, {mt::Shard(0)}); }};
}

// Images and their classes; the last batch of a loader is smaller than the others.
class Images : public torch::data::datasets::Dataset<Images> {
 public:
  Images(int64_t channels, int64_t size, int64_t classes)
      : channels_(channels), size_(size), classes_(classes) {}
  torch::data::Example<> get(size_t index) override {
    const auto seed = static_cast<int64_t>(index);
    return {numbers({channels_, size_, size_}, torch::kDouble, seed), torch::tensor(seed % classes_)};
  }
  std::optional<size_t> size() const override { return 14; }

 private:
  int64_t channels_, size_, classes_;
};

auto loader_of(Images images) {
  return torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      images.map(torch::data::transforms::Stack<>()), 8);
}

template <class Module>
void fill(Module& module) {
  const torch::NoGradGuard no_grad;
  int64_t seed = 0;
  for (Tensor& p : module.parameters()) p.copy_(numbers(p.sizes(), torch::kDouble, ++seed) / 8);
}

struct ConvNet : nn::Module {
  ConvNet() : conv1(nn::Conv2dOptions(1, 4, 3)), conv2(nn::Conv2dOptions(4, 6, 3)), fc1(24, 10), fc2(10, 5) {
    register_module("conv1", conv1);
    register_module("conv2", conv2);
    register_module("fc1", fc1);
    register_module("fc2", fc2);
    to(torch::kDouble);
    fill(*this);
  }
  Tensor forward(Tensor x) {
    x = torch::relu(torch::max_pool2d(conv1->forward(x), 2));
    x = torch::relu(torch::max_pool2d(conv2->forward(x), 2)).view({-1, 24});
    return torch::log_softmax(fc2->forward(torch::relu(fc1->forward(x))), 1);
  }
  nn::Conv2d conv1, conv2;
  nn::Linear fc1, fc2;
};

std::vector<double> classify_digits(const Placing& place) {
  ConvNet model;
  place.model(model);
  auto loader = loader_of(Images(1, 14, 5));
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.05).momentum(0.5));
  std::vector<double> found;
  for (int epoch = 0; epoch < 2; ++epoch) {
    model.train();
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      const Tensor loss = torch::nll_loss(model.forward(place.batch(batch.data)), place.batch(batch.target));
      loss.backward();
      optimizer.step();
      found.push_back(loss.item<double>());
    }
    const torch::NoGradGuard no_grad;
    model.eval();
    for (auto& batch : *loader) {
      const Tensor output = model.forward(place.batch(batch.data)), target = place.batch(batch.target);
      found.push_back(torch::nll_loss(output, target, {}, torch::Reduction::Sum).item<double>());
      found.push_back(output.argmax(1).eq(target).sum().item<double>());
    }
  }
  return found;
}

struct Generator : nn::Module {
  Generator()
      : conv1(nn::ConvTranspose2dOptions(6, 8, 3).bias(false)),
        norm1(8),
        conv2(nn::ConvTranspose2dOptions(8, 1, 4).stride(2).padding(1).bias(false)) {
    register_module("conv1", conv1);
    register_module("conv2", conv2);
    register_module("norm1", norm1);
    to(torch::kDouble);
    fill(*this);
  }
  Tensor forward(const Tensor& x) { return torch::tanh(conv2(torch::relu(norm1(conv1(x))))); }
  nn::ConvTranspose2d conv1;
  nn::BatchNorm2d norm1;
  nn::ConvTranspose2d conv2;
};

nn::Sequential new_discriminator() {
  nn::Sequential made(nn::Conv2d(nn::Conv2dOptions(1, 4, 4).stride(2).padding(1).bias(false)),
                      nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.2)), nn::BatchNorm2d(4),
                      nn::Conv2d(nn::Conv2dOptions(4, 1, 3).bias(false)), nn::Sigmoid());
  made->to(torch::kDouble);
  fill(*made);
  return made;
}

// Two models, of which one learns from what the other made, twice in one step.
std::vector<double> train_adversaries(const Placing& place) {
  Generator generator;
  nn::Sequential discriminator = new_discriminator();
  place.model(generator);
  place.model(*discriminator);
  const auto options = torch::optim::AdamOptions(1e-2).betas({0.5, 0.5});
  torch::optim::Adam of_generator(generator.parameters(), options);
  torch::optim::Adam of_discriminator(discriminator->parameters(), options);
  std::vector<double> found;
  const auto loader = loader_of(Images(1, 6, 2));
  for (auto& batch : *loader) {
    const int64_t size = batch.data.size(0);
    const auto score = [&](const Tensor& images) { return discriminator->forward(images).reshape({size}); };
    const auto label = [&](double value) { return place.batch(torch::full({size}, value, torch::kDouble)); };
    discriminator->zero_grad();
    const Tensor real = torch::binary_cross_entropy(score(place.batch(batch.data)), label(0.9));
    real.backward();
    const Tensor fakes = generator.forward(place.batch(numbers({size, 6, 1, 1}, torch::kDouble)));
    const Tensor fake = torch::binary_cross_entropy(score(fakes.detach()), label(0));
    fake.backward();
    of_discriminator.step();
    generator.zero_grad();
    const Tensor deceived = torch::binary_cross_entropy(score(fakes), label(1));
    deceived.backward();
    of_generator.step();
    found.insert(found.end(), {(real + fake).item<double>(), deceived.item<double>()});
  }
  return found;
}

struct PhotoNetImpl : nn::SequentialImpl {
  PhotoNetImpl() {
    push_back(nn::Conv2d(nn::Conv2dOptions(3, 6, 3).stride(2).padding(1)));
    push_back(nn::Functional(torch::relu));
    push_back(nn::Functional(torch::max_pool2d, 2, torch::ExpandingArray<2>({2, 2}), 0, 1, false));
    push_back(nn::Functional([](const Tensor& x) { return x.reshape({-1, 24}); }));
    push_back(nn::Linear(24, 4));
    push_back(nn::Functional([](const Tensor& x) { return torch::log_softmax(x, 1); }));
    to(torch::kDouble);
    fill(*this);
  }
};
TORCH_MODULE(PhotoNet);

std::vector<double> classify_photos(const Placing& place) {
  PhotoNet network;
  place.model(*network);
  torch::optim::SGD optimizer(network->parameters(), torch::optim::SGDOptions(0.05).momentum(0.5));
  std::vector<double> found;
  const auto loader = loader_of(Images(3, 8, 4));
  for (auto& batch : *loader) {
    const Tensor target = place.batch(batch.target).view(-1),
                 output = network->forward(place.batch(batch.data));
    const Tensor loss = torch::nll_loss(output, target);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    found.insert(found.end(), {loss.item<double>(), output.argmax(1).eq(target).sum().item<double>()});
  }
  return found;
}

void expect_same_on_split_batches(std::vector<double> (*program)(const Placing&)) {
  on_ranks(4, [program](int) {
    const std::vector<double> expected = program({}), found = program(data_parallel(line(4)));
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-9) << i;
  });
}

TEST(PlainPrograms, DigitsAreClassifiedOnSplitBatches) { expect_same_on_split_batches(classify_digits); }
TEST(PlainPrograms, AdversariesAreTrainedOnSplitBatches) { expect_same_on_split_batches(train_adversaries); }
TEST(PlainPrograms, PhotosAreClassifiedOnSplitBatches) { expect_same_on_split_batches(classify_photos); }

}  // namespace
}  // namespace meshtorch::testing

// Modules with hooks: any signature, everywhere that LibTorch's own modules go.
#include "numbers.h"

namespace meshtorch::testing {
namespace {

// Modules of every kind of signature.
struct Pair {
  torch::Tensor first;
  std::optional<torch::Tensor> second;
  int64_t count;
};

struct ManyImpl : torch::nn::Module {
  static std::array<const char*, 4> argument_names() { return {"x", "y", "scale", "mask"}; }
  std::tuple<torch::Tensor, Pair> forward(const torch::Tensor& x, torch::Tensor y, double scale = 2,
                                          const std::optional<torch::Tensor>& mask = {}) {
    torch::Tensor sum = (x + y) * scale;
    if (mask) sum = sum * *mask;
    return {sum, Pair{sum + 1, std::nullopt, 3}};
  }
};
MESHTORCH_MODULE(Many);

struct ConstantImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) const { return x + 1; }
};
MESHTORCH_MODULE(Constant);

struct VoidImpl : torch::nn::Module {
  void forward(std::vector<torch::Tensor>& out) { out.push_back(torch::ones({1})); }
};
MESHTORCH_MODULE(Void);

TEST(Hooked, SeesEveryTensorOfAnySignature) {
  Many many;
  std::vector<std::string> seen;
  many->register_forward_pre_hook([&](torch::nn::Module&, mt::Values& inputs) {
    for (std::size_t i = 0; i < inputs.size(); ++i)
      seen.push_back(std::string(inputs.name(i)) + (inputs.is_tensor(i) ? ":tensor" : ":other"));
    inputs[0] = inputs[0] * 10;
  });
  many->register_forward_hook([&](torch::nn::Module&, mt::Values& outputs) {
    EXPECT_EQ(outputs.size(), 4U);  // a tensor, and the struct's tensor, empty optional and number
    EXPECT_TRUE(outputs.is_tensor(1));
    EXPECT_FALSE(outputs.is_tensor(2));
    outputs[1] = outputs[1] * 0;
  });
  const auto [sum, pair] = many(torch::ones({2}), torch::ones({2}), 2.0, torch::full({2}, 3.0));
  EXPECT_EQ(seen, (std::vector<std::string>{"x:tensor", "y:tensor", "scale:other", "mask:tensor"}));
  EXPECT_TRUE(is_equal(sum, torch::full({2}, 66.0)));
  EXPECT_TRUE(is_equal(pair.first, torch::zeros({2})));
  EXPECT_EQ(pair.count, 3);
}

TEST(Hooked, DefaultsMayBeLeftOut) {
  Many many;
  EXPECT_TRUE(is_equal(std::get<0>(many(torch::ones({2}), torch::ones({2}))), torch::full({2}, 4.0)));
  int calls = 0;
  many->register_forward_pre_hook(
      [&](torch::nn::Module&, mt::Values& inputs) { calls += static_cast<int>(inputs.size()); });
  EXPECT_TRUE(is_equal(std::get<0>(many(torch::ones({2}), torch::ones({2}))), torch::full({2}, 4.0)));
  EXPECT_EQ(calls, 2);
}

TEST(Hooked, ConstantAndVoidForwardsWork) {
  const Constant constant;
  EXPECT_TRUE(is_equal(constant->forward(torch::ones({1})), torch::full({1}, 2.0)));
  Void writes;
  int calls = 0;
  writes->register_forward_hook(
      [&](torch::nn::Module&, mt::Values& outputs) { calls += 1 + static_cast<int>(outputs.size()); });
  std::vector<torch::Tensor> out;
  writes(out);
  EXPECT_EQ(out.size(), 1U);
  EXPECT_EQ(calls, 1);
}

TEST(Hooked, RemovedHooksDoNotRun) {
  mt::nn::Identity identity;
  int calls = 0;
  const auto id = identity->register_forward_pre_hook([&](torch::nn::Module&, mt::Values&) { ++calls; });
  identity(torch::ones({1}));
  identity->remove_hook(id);
  identity(torch::ones({1}));
  EXPECT_EQ(calls, 1);
}

TEST(Hooked, AHookMayRemoveItselfAndAddOthers) {
  mt::nn::Identity identity;
  std::string ran;
  mt::Hookable::HookId once = 0;
  once =
      identity->register_forward_pre_hook([&, name = std::string("once ")](torch::nn::Module&, mt::Values&) {
        identity->remove_hook(once);
        for (int i = 0; i < 8; ++i)
          identity->register_forward_pre_hook([&](torch::nn::Module&, mt::Values&) { ran += "added "; });
        ran += name;
      });
  identity->register_forward_pre_hook([&](torch::nn::Module&, mt::Values&) { ran += "second "; });
  identity(torch::ones({1}));
  EXPECT_EQ(ran, "once second ");
  ran.clear();
  identity(torch::ones({1}));
  EXPECT_EQ(ran, "second added added added added added added added added ");
}

TEST(Hooked, WorksInSequentialModuleListAndAnyModule) {
  int calls = 0;
  const auto count = [&](torch::nn::Module&, mt::Values&) { ++calls; };
  mt::nn::Linear linear(4, 3);
  linear->register_forward_pre_hook(count);
  mt::nn::ConvTranspose1d transposed(torch::nn::ConvTranspose1dOptions(3, 2, 1));
  transposed->register_forward_pre_hook(count);
  torch::nn::Sequential sequential(linear, mt::nn::ReLU());
  EXPECT_EQ(sequential->forward(torch::ones({2, 4})).sizes(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(calls, 1);
  torch::nn::Sequential with_defaults(transposed);  // its forward has an argument with a default
  EXPECT_EQ(with_defaults->forward(torch::ones({1, 3, 5})).sizes(), (std::vector<int64_t>{1, 2, 5}));
  EXPECT_EQ(calls, 2);
  torch::nn::ModuleList list(linear);
  list->at<torch::nn::LinearImpl>(0);
  torch::nn::AnyModule any(linear);
  any.forward(torch::ones({2, 4}));
  EXPECT_EQ(calls, 3);
}

TEST(Hooked, ClonesKeepTheirHooksAndOwnTheirParameters) {
  torch::nn::Sequential sequential(mt::nn::Linear(4, 3), mt::nn::ReLU());
  mt::nn::Linear linear(4, 3);
  int calls = 0;
  linear->register_forward_hook([&](torch::nn::Module&, mt::Values&) { ++calls; });
  const auto copy = std::dynamic_pointer_cast<mt::nn::Linear::Impl>(linear->clone());
  ASSERT_NE(copy, nullptr);
  copy->forward(torch::ones({2, 4}));
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(is_equal(copy->weight, linear->weight));
  EXPECT_FALSE(copy->weight.is_same(linear->weight));
  EXPECT_TRUE(copy->weight.is_same(copy->parameters()[0]));
  const auto cloned = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(sequential->clone());
  EXPECT_EQ(cloned->forward(torch::ones({2, 4})).sizes(), (std::vector<int64_t>{2, 3}));
}

TEST(Hooked, SavesAndLoadsAsThePlainModule) {
  mt::nn::Linear linear(4, 3);
  torch::nn::Linear plain(4, 3);
  std::stringstream stream;
  torch::save(linear, stream);
  torch::load(plain, stream);
  EXPECT_TRUE(is_equal(plain->weight, linear->weight));
}

TEST(RMSNorm, DividesByTheRootOfTheMeanSquare) {
  mt::nn::RMSNorm norm(mt::nn::RMSNormOptions(6).set_eps(1e-5));
  const torch::Tensor x = numbers({3, 6});
  EXPECT_TRUE(is_close(norm(x), x * torch::rsqrt(x.square().mean(-1, true) + 1e-5)));
  EXPECT_EQ(norm->parameters().size(), 1U);
}

}  // namespace
}  // namespace meshtorch::testing

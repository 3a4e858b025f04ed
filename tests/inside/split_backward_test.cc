// Backward in two halves gives the gradients of one backward, computes nothing twice and frees what it can.
#include "pipeline/split_backward.h"

#include "numbers.h"
#include "runtime/differentiable.h"

namespace meshtorch::testing {
namespace {

using namespace internal;
using torch::Tensor;
using Tensors = std::vector<Tensor>;
using StageFunction = std::function<Tensors(const Tensors& inputs, const Tensors& parameters)>;

struct Gradients {
  Tensors of_inputs;
  Tensors of_parameters;
};

Tensors leaf_tensors(std::size_t count, int64_t seed) {
  Tensors tensors;
  for (std::size_t i = 0; i < count; ++i)
    tensors.push_back(numbers({3, 3}, torch::kDouble, seed + static_cast<int64_t>(i)).requires_grad_());
  return tensors;
}

BackwardStart start_of(const Tensors& outputs) {
  BackwardStart start;
  for (const Tensor& output : outputs) {
    if (!output.requires_grad()) continue;
    start.edges.push_back(torch::autograd::impl::gradient_edge(output));
    start.gradients.push_back(
        numbers(output.sizes(), torch::kDouble, 40 + static_cast<int64_t>(start.edges.size())));
  }
  return start;
}

Tensors gradients_of(const Tensors& tensors) {
  Tensors gradients;
  for (const Tensor& tensor : tensors) gradients.push_back(tensor.grad());
  return gradients;
}

Gradients gradients_in_one(const StageFunction& function) {
  const Tensors inputs = leaf_tensors(2, 1);
  const Tensors parameters = leaf_tensors(3, 11);
  run_backward(start_of(function(inputs, parameters)));
  return {gradients_of(inputs), gradients_of(parameters)};
}

Gradients gradients_in_halves(const StageFunction& function) {
  const Tensors inputs = leaf_tensors(2, 1);
  const Tensors parameters = leaf_tensors(3, 11);
  const InputGradients first = run_input_backward(start_of(function(inputs, parameters)), inputs);
  for (const Tensor& parameter : parameters) EXPECT_FALSE(parameter.grad().defined());
  run_backward(first.parameters);
  return {first.gradients, gradients_of(parameters)};
}

void expect_alike(const Tensors& actual, const Tensors& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(actual[i].defined(), expected[i].defined()) << i;
    if (!actual[i].defined()) continue;
    EXPECT_TRUE(is_close(actual[i], expected[i], 1e-12)) << i;
  }
}

void expect_equal_halves(const StageFunction& function) {
  const Gradients expected = gradients_in_one(function);
  const Gradients actual = gradients_in_halves(function);
  expect_alike(actual.of_inputs, expected.of_inputs);
  expect_alike(actual.of_parameters, expected.of_parameters);
}

TEST(SplitBackward, OfLayersInARow) {
  expect_equal_halves([](const Tensors& x, const Tensors& w) {
    return Tensors{torch::tanh(torch::tanh(x[0].mm(w[0])).mm(w[1]) + w[2])};
  });
}

TEST(SplitBackward, OfResidualsAndSeveralOutputs) {
  expect_equal_halves([](const Tensors& x, const Tensors& w) {
    const Tensor h = x[0] + torch::tanh(x[0].mm(w[0])) * x[1];
    return Tensors{h + h.mm(w[1]), h * 2, x[1] * w[2]};
  });
}

TEST(SplitBackward, OfAParameterThatIsUsedAtSeveralDepths) {
  expect_equal_halves([](const Tensors& x, const Tensors& w) {
    const Tensor turned = torch::softmax(w[0].t(), 0);
    const Tensor h = torch::tanh(x[0].mm(turned).mm(w[0]));
    return Tensors{(h + x[1].mm(w[0])).mm(turned).mm(w[1]), w[2] + 0};
  });
}

TEST(SplitBackward, OfOutputsThatDependOnNoInput) {
  expect_equal_halves([](const Tensors& x, const Tensors& w) { return Tensors{w[0].mm(w[1]), x[0] * w[0]}; });
  expect_equal_halves([](const Tensors&, const Tensors& w) { return Tensors{w[0].mm(w[1])}; });
}

TEST(SplitBackward, OfOutputsThatAreInputsOrOneTensor) {
  expect_equal_halves([](const Tensors& x, const Tensors& w) {
    const Tensor h = x[0] * w[0];
    return Tensors{x[1], h, h};
  });
}

TEST(SplitBackward, OfInputsWithoutParameters) {
  expect_equal_halves([](const Tensors& x, const Tensors&) { return Tensors{torch::tanh(x[0]) * x[1]}; });
}

TEST(SplitBackward, OfFunctionsWithSeveralResults) {
  expect_equal_halves([](const Tensors& x, const Tensors& w) {
    const auto parts = (x[0].mm(w[0])).chunk(3, 1);
    return Tensors{parts[0] * parts[2] + x[1].mm(w[1]).slice(1, 0, 1)};  // one part is not used
  });
}

TEST(SplitBackward, HooksRunOnce) {
  expect_equal_halves([](const Tensors& x, const Tensors& w) {
    const Tensor h = x[0].mm(w[0]);
    h.register_hook([](const Tensor& gradient) { return gradient * 3; });
    return Tensors{torch::tanh(h)};
  });
}

// A function that counts how often its backward runs, and holds `token`.
Tensor counted(const Tensor& input, int& runs, const std::shared_ptr<int>& token = nullptr) {
  return differentiable(
      "CountedBackward", input, [](const Tensor& t) { return t * 2; },
      [&runs, token](const Tensor& gradient) {
        ++runs;
        return gradient * 2;
      },
      Holds::tensors);
}

TEST(SplitBackward, ComputesNothingTwice) {
  int of_input = 0;
  int of_parameter = 0;
  const Tensors x = leaf_tensors(1, 1);
  const Tensors w = leaf_tensors(2, 2);
  const Tensor y = counted(counted(x[0], of_input).mm(counted(w[0], of_parameter)), of_input).mm(w[1]);
  const InputGradients first = run_input_backward(start_of({y}), x);
  EXPECT_EQ(of_input, 2);
  EXPECT_EQ(of_parameter, 0);
  run_backward(first.parameters);
  EXPECT_EQ(of_input, 2);
  EXPECT_EQ(of_parameter, 1);
}

// The function whose result a product keeps for the gradient of its parameter.
TEST(SplitBackward, FreesWhatLeadsToNoParameter) {
  int runs = 0;
  const auto token = std::make_shared<int>();
  const Tensors x = leaf_tensors(1, 1);
  const Tensors w = leaf_tensors(2, 2);
  BackwardStart start = start_of({counted(x[0].mm(w[0]), runs, token).mm(w[1])});
  EXPECT_GT(token.use_count(), 1);
  const InputGradients first = run_input_backward(std::exchange(start, {}), x);
  EXPECT_EQ(token.use_count(), 1);
  EXPECT_EQ(first.parameters.edges.size(), 2U);
}

TEST(SplitBackward, OfADeepGraph) {
  const Tensors x = leaf_tensors(1, 1);
  const Tensors w = leaf_tensors(1, 2);
  Tensor y = x[0];
  for (int i = 0; i < 30000; ++i) y = y + w[0];
  const InputGradients first = run_input_backward(
      {{torch::autograd::impl::gradient_edge(y)}, {torch::ones({3, 3}, torch::kDouble)}}, x);
  y = Tensor();
  run_backward(first.parameters);
  EXPECT_TRUE(is_equal(first.gradients[0], torch::ones({3, 3}, torch::kDouble)));
  EXPECT_TRUE(is_equal(w[0].grad(), torch::full({3, 3}, 30000, torch::kDouble)));
}

}  // namespace
}  // namespace meshtorch::testing

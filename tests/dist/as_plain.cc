// The comparison of a split run with a plain one.
#include "as_plain.h"

#include "placed_call.h"

namespace meshtorch::testing {
namespace {

using torch::Tensor;

struct Outcome {
  Inputs results, gradients;
};

Outcome run(const Function& f, Inputs inputs, const std::function<Tensor(const Tensor&)>& spread) {
  Inputs leaves;
  for (Tensor& t : inputs) {
    t = t.detach();
    if (t.is_floating_point()) leaves.push_back(t.requires_grad_());
  }
  Outcome outcome{f(inputs), {}};
  Tensor loss;
  for (const Tensor& r : outcome.results) {
    if (!r.requires_grad()) continue;
    const Tensor part = (r * spread(numbers(r.sizes(), r.scalar_type(), 7))).sum();
    loss = loss.defined() ? loss + part : part;
  }
  if (loss.defined())
    outcome.gradients = torch::autograd::grad({loss}, leaves, {}, {}, false, /*allow_unused=*/true);
  return outcome;
}

void compare(const char* what, const Inputs& actual, const Inputs& expected) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    SCOPED_TRACE(c10::str(what, " ", i));
    ASSERT_EQ(actual[i].defined(), expected[i].defined());
    if (!expected[i].defined()) continue;
    ASSERT_TRUE(mt::is_dtensor(actual[i])) << "is plain";
    EXPECT_EQ(actual[i].sizes(), expected[i].sizes()) << "global shape";
    EXPECT_TRUE(is_close(mt::DTensor(actual[i]).full_tensor().detach(), expected[i].detach(), 1e-9));
  }
}

}  // namespace

void expect_as_plain(int n, const std::vector<Placed>& inputs, const Function& f, bool differentiated) {
  mt::set_fallback_policy(mt::FallbackPolicy::silent);
  on_ranks(n, [&](int) {
    const mt::DeviceMesh mesh = line(n);
    Inputs plain, split;
    std::string layouts;
    for (const Placed& input : inputs) {
      plain.push_back(input.whole);
      split.push_back(placed_tensor(input.whole, mesh, {input.placement}));
      layouts += c10::str(" ", input.whole.sizes(), mt::to_string(mt::Placements{input.placement}));
    }
    SCOPED_TRACE(c10::str(n, " ranks,", layouts));
    const Outcome expected = run(f, plain, [](const Tensor& w) { return w; });
    const Outcome actual = run(f, split, [&](const Tensor& w) -> Tensor {
      return mt::distribute_tensor(w, mesh, {mt::Replicate()}, {.src_data_rank = std::nullopt});
    });
    EXPECT_EQ(!expected.gradients.empty(), differentiated) << "the plain function's gradients";
    compare("result", actual.results, expected.results);
    compare("gradient", actual.gradients, expected.gradients);
  });
  mt::set_fallback_policy(mt::FallbackPolicy::warn);
}

}  // namespace meshtorch::testing

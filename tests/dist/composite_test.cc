// Composite operators, LibTorch's and a user's own: what they make inside is replicated, and gradients come
// back distributed.
#include <torch/library.h>

#include "numbers.h"

namespace {

// A plain tensor meets the argument inside.
torch::Tensor with_row_numbers(const torch::Tensor& x) {
  return x + torch::arange(x.size(0), x.options()).unsqueeze(1);
}

torch::Tensor doubled(const torch::Tensor& x) { return x * 2; }

}  // namespace

TORCH_LIBRARY(mine, library) {
  library.def("with_row_numbers(Tensor x) -> Tensor", with_row_numbers);
  library.def("doubled(Tensor x) -> Tensor");
}
TORCH_LIBRARY_IMPL(mine, CPU, library) { library.impl("doubled", doubled); }

namespace meshtorch::testing {
namespace {

using mt::Replicate;
using mt::Shard;

torch::Tensor made_whole(const torch::Tensor& t) { return mt::DTensor(t).full_tensor(); }

torch::Tensor called(const char* name, const torch::Tensor& x) {
  torch::jit::Stack stack{x};
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(&stack);
  return stack.at(0).toTensor();
}

void expect_decomposes(const char* name) {
  on_ranks(2, [&](int) {
    const torch::Tensor whole = numbers({5, 4}).requires_grad_();
    const torch::Tensor x = mt::distribute_tensor(whole, line(2), {Shard(0)});
    const torch::Tensor y = called(name, x);
    EXPECT_TRUE(is_equal(made_whole(y).detach(), with_row_numbers(whole).detach()));
    const auto gradients =
        torch::autograd::grad({y}, {x}, {mt::distribute_tensor(numbers({5, 4}), line(2), {Shard(1)})});
    EXPECT_TRUE(is_equal(made_whole(gradients[0]), numbers({5, 4})));
    const c10::InferenceMode mode;
    EXPECT_TRUE(
        is_equal(made_whole(called(name, mt::distribute_tensor(numbers({5, 4}), line(2), {Shard(0)}))),
                 with_row_numbers(numbers({5, 4}))));
  });
}

TEST(OwnComposites, MayMakePlainTensorsInside) { expect_decomposes("mine::with_row_numbers"); }

TEST(OwnComposites, MayBeRegisteredAfterTheLibrary) {
  torch::Library later(torch::Library::DEF, "mine_later", std::nullopt, __FILE__, __LINE__);
  later.def("with_row_numbers(Tensor x) -> Tensor", with_row_numbers);
  expect_decomposes("mine_later::with_row_numbers");
}

class Words : public c10::WarningHandler {
 public:
  std::string said;

 private:
  void process(const c10::Warning& warning) override { said += warning.msg(); }
};

TEST(OwnOperators, WithoutARuleAreNamedWithTheirNamespace) {
  on_ranks(2, [](int rank) {
    const torch::Tensor x = mt::distribute_tensor(numbers({5, 4}), line(2), {Shard(0)});
    Words words;
    {
      const c10::WarningUtils::WarningHandlerGuard guard(&words);
      EXPECT_TRUE(is_equal(made_whole(called("mine::doubled", x)), numbers({5, 4}) * 2));
    }
    // The process says it once.
    EXPECT_EQ(words.said.find("aten::"), std::string::npos) << rank << words.said;
    mt::set_fallback_policy(mt::FallbackPolicy::error);
    const torch::Tensor other = mt::distribute_tensor(numbers({5, 5}), line(2), {Shard(0)});
    const std::string error = error_of([&] { called("mine::doubled", other); });
    EXPECT_EQ(error.find("meshtorch: `mine::doubled` has no rule"), 0) << error;
    mt::barrier();
    mt::set_fallback_policy(mt::FallbackPolicy::warn);
  });
}

TEST(Composites, GiveDistributedGradientsWhereTheFormulasMakePlainZeros) {
  on_ranks(2, [](int) {
    const auto gradient = [](const std::function<torch::Tensor(const torch::Tensor&)>& call) {
      const torch::Tensor x = mt::distribute_tensor(numbers({5, 4}).requires_grad_(), line(2), {Shard(0)});
      const torch::Tensor y = call(x);
      const torch::Tensor incoming = mt::distribute_tensor(numbers(y.sizes()), line(2), {Replicate()});
      return torch::autograd::grad({y}, {x}, {incoming}).at(0);
    };
    EXPECT_TRUE(is_equal(made_whole(gradient([](const torch::Tensor& x) { return torch::tile(x, {0, 2}); })),
                         torch::zeros({5, 4})));
    EXPECT_TRUE(
        is_equal(made_whole(gradient([](const torch::Tensor& x) { return torch::tile(x, {2, 0, 1}); })),
                 torch::zeros({5, 4})));
  });
}

TEST(OwnOperators, MayBeRegisteredAnewWithOtherArguments) {
  on_ranks(1, [](int) {
    const torch::Tensor whole = numbers({5, 4});
    const torch::Tensor x = mt::distribute_tensor(whole, line(1), {Shard(0)});
    for (int i = 0; i < 4; ++i) {
      torch::Library library(torch::Library::DEF, "mine_anew", std::nullopt, __FILE__, __LINE__);
      if (i % 2 == 0) {
        library.def("scaled(Tensor x) -> Tensor");
        library.impl("scaled", torch::dispatch(c10::DispatchKey::CPU, doubled));
        EXPECT_TRUE(is_equal(made_whole(called("mine_anew::scaled", x)), whole * 2));
      } else {
        library.def("scaled(Tensor[] xs, int factor, *, Tensor more) -> (Tensor, Tensor)");
        library.impl("scaled", torch::dispatch(c10::DispatchKey::CPU, [](at::TensorList xs, int64_t factor,
                                                                         const torch::Tensor& more) {
                       return std::tuple(xs[0] * factor, more * factor);
                     }));
        torch::jit::Stack stack{std::vector<torch::Tensor>{x}, 3, x};
        c10::Dispatcher::singleton().findSchemaOrThrow("mine_anew::scaled", "").callBoxed(&stack);
        for (const c10::IValue& result : stack)
          EXPECT_TRUE(is_equal(made_whole(result.toTensor()), whole * 3));
      }
    }
  });
}

TEST(Composites, HaveTheSameShapesOnRanksOutsideTheMesh) {
  on_ranks(3, [](int rank) {
    const mt::DeviceMesh mesh(torch::kCPU, std::vector<int64_t>{0, 2});
    for (const bool has_gradient : {false, true}) {
      const auto padded = [](const torch::Tensor& x) {  // copies into a plain tensor
        return torch::pad_sequence({x.select(0, 0), x.select(0, 1).narrow(0, 0, 3)});
      };
      const torch::Tensor plain = numbers({5, 4}).requires_grad_(has_gradient);
      const torch::Tensor expected = padded(plain);
      const torch::Tensor x =
          mt::distribute_tensor(numbers({5, 4}).requires_grad_(has_gradient), mesh, {Shard(0)});
      const torch::Tensor y = padded(x);
      EXPECT_EQ(y.sizes(), expected.sizes());
      EXPECT_EQ(y.requires_grad(), has_gradient);
      if (rank != 1) {
        EXPECT_TRUE(is_equal(made_whole(y).detach(), expected.detach()));
      }
      if (!has_gradient) continue;
      y.square().sum().backward();
      expected.square().sum().backward();
      EXPECT_EQ(x.grad().sizes(), plain.sizes());
      if (rank != 1) {
        EXPECT_TRUE(is_equal(made_whole(x.grad()), plain.grad()));
      }
    }
  });
}

}  // namespace
}  // namespace meshtorch::testing

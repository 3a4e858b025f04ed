// Random operators: the same numbers for any mesh and placement.
#include <ATen/ATen.h>
#include <ATen/ops/bernoulli_ops.h>
#include <ATen/ops/cauchy_ops.h>
#include <ATen/ops/exponential_ops.h>
#include <ATen/ops/geometric_ops.h>
#include <ATen/ops/log_normal_ops.h>
#include <ATen/ops/native_dropout_ops.h>
#include <ATen/ops/normal_ops.h>
#include <ATen/ops/rand_like_ops.h>
#include <ATen/ops/randint_like_ops.h>
#include <ATen/ops/randn_like_ops.h>
#include <ATen/ops/random_ops.h>
#include <ATen/ops/rrelu_with_noise_ops.h>
#include <ATen/ops/uniform_ops.h>

#include "backends/pending.h"
#include "decompose/distributions.h"
#include "decompose/families.h"
#include "dispatch/write_back.h"
#include "tensor/memory_state.h"
#include "tensor/random.h"
#include "tensor/random_fill.h"
#include "tensor/redistribute.h"

namespace meshtorch::internal {
namespace {

namespace op = at::_ops;

// The layout of a tensor whose numbers are not pending.
const Layout& whole_layout(const DTensorMeta& meta) {
  return *meta.mesh->layout(gradient_placements(meta.layout->placements));
}

const DTensorMeta& distributed_self(const char* op, const at::Tensor& self) {
  const DTensorMeta* meta = meta_of(self);
  TORCH_CHECK(meta != nullptr, "meshtorch: `", op,
              "` got a plain tensor beside distributed ones\n  argument self: a plain tensor of shape ",
              self.sizes(), "\n  do: make it distributed with distribute_tensor");
  return *meta;
}

at::Tensor drawn_like(const char* op, const at::Tensor& self, std::optional<at::ScalarType> type,
                      std::optional<at::Device> device, const Distribution& distribution) {
  const DTensorMeta& meta = distributed_self(op, self);
  at::TensorOptions options = meta.local.options();
  if (type) options = options.dtype(*type);
  if (device) options = options.device(*device);
  return random_tensor(self.sizes().vec(), whole_layout(meta), options, distribution);
}

void draw_into(const char* op, const at::Tensor& self, const Distribution& distribution) {
  const DTensorMeta& meta = distributed_self(op, self);
  wait_pending(meta.local);
  if (meta.layout->has_partial) {
    meta.local.copy_(random_local(self.sizes().vec(), *meta.layout, meta.local.options(), distribution));
  } else {
    fill_random(meta.local, self.sizes(), *meta.layout, take_random_call(), distribution);
  }
  note_write(meta.local);
  if (meta.write_back) write_through(self);
}

// The optional argument of this type, if there is one.
template <typename Option, typename... Arguments>
std::optional<Option> optional_argument(const Arguments&... arguments) {
  std::optional<Option> found;
  const auto look_at = [&](const auto& argument) {
    if constexpr (std::is_same_v<std::decay_t<decltype(argument)>, std::optional<Option>>) found = argument;
  };
  (look_at(arguments), ...);
  return found;
}

// An operator that draws a tensor of numbers, in place or of the same shape; `Draw` says which.
template <typename Op, typename Draw, typename Schema = typename Op::schema>
struct Drawn;

template <typename Op, typename Draw, typename... Arguments>
struct Drawn<Op, Draw, at::Tensor&(at::Tensor&, Arguments...)> {
  static at::Tensor& call(at::Tensor& self, Arguments... arguments) {
    const DrawsFrom numbers(Op::name, optional_argument<at::Generator>(arguments...));
    draw_into(Op::name, self, Draw()({Op::name, self.scalar_type()}, arguments...));
    return self;
  }
};

template <typename Op, typename Draw, typename... Arguments>
struct Drawn<Op, Draw, at::Tensor(const at::Tensor&, Arguments...)> {
  // Of the options of the new tensor, its type and device matter.
  static at::Tensor call(const at::Tensor& self, Arguments... arguments) {
    const DrawsFrom numbers(Op::name, optional_argument<at::Generator>(arguments...));
    const auto type = optional_argument<at::ScalarType>(arguments...);
    const Distribution distribution = Draw()({Op::name, type.value_or(self.scalar_type())}, arguments...);
    return drawn_like(Op::name, self, type, optional_argument<at::Device>(arguments...), distribution);
  }
};

template <typename Draw, typename... Ops>
void add_drawn(DecompositionTable& ops) {
  (ops.add<Ops>(Drawn<Ops, Draw>::call), ...);
}

// A number in [0, 1) for each element, to compare with its probability. A number and a tensor of
// probabilities draw alike.
at::Tensor hits(const char* op, const at::Tensor& self, const at::Tensor& probability) {
  return at::lt(drawn_like(op, self, at::kDouble, std::nullopt, Distribution::uniform(0, 1)), probability);
}

at::Tensor bernoulli(const at::Tensor& self, std::optional<at::Generator> generator) {
  const DrawsFrom numbers("aten::bernoulli", generator);
  check_probabilities("aten::bernoulli", "self", self);
  return hits("aten::bernoulli", self, self).to(self.scalar_type());
}

at::Tensor bernoulli_tensor(const at::Tensor& self, const at::Tensor& p,
                            std::optional<at::Generator> generator) {
  const DrawsFrom numbers("aten::bernoulli", generator);
  check_probabilities("aten::bernoulli", "p", p);
  return hits("aten::bernoulli", self, p).to(self.scalar_type());
}

at::Tensor& bernoulli_tensor_in_place(at::Tensor& self, const at::Tensor& p,
                                      std::optional<at::Generator> generator) {
  const DrawsFrom numbers("aten::bernoulli_", generator);
  check_probabilities("aten::bernoulli_", "p", p);
  self.copy_(hits("aten::bernoulli_", self, p));
  return self;
}

// Normal numbers with mean 0 and deviation 1 of the common shape of two tensors, lying as the larger does.
at::Tensor standard_normal_like(const at::Tensor& first, const at::Tensor& second) {
  const Shape sizes = at::infer_size(first.sizes(), second.sizes());
  const Layout* layout = nullptr;
  for (const at::Tensor& t : {first, second}) {
    const DTensorMeta* meta = meta_of(t);
    if (meta == nullptr) continue;
    if (t.sizes() == at::IntArrayRef(sizes)) {
      layout = &whole_layout(*meta);
    } else if (layout == nullptr) {
      layout = meta->mesh->replicated();
    }
  }
  const at::ScalarType type = first.scalar_type();
  return random_tensor(sizes, *layout, at::TensorOptions(type).device(first.device()),
                       DrawStandardNormal()({"aten::normal", type}));
}

at::Tensor normal_tensor_float(const at::Tensor& mean, double std, std::optional<at::Generator> generator) {
  const DrawsFrom numbers("aten::normal", generator);
  check_deviation({"aten::normal", mean.scalar_type()}, std);
  return standard_normal_like(mean, mean).mul(std).add(mean).to(mean.scalar_type());
}

at::Tensor normal_float_tensor(double mean, const at::Tensor& std, std::optional<at::Generator> generator) {
  const DrawsFrom numbers("aten::normal", generator);
  return standard_normal_like(std, std).mul(std).add(mean).to(std.scalar_type());
}

at::Tensor normal_tensor_tensor(const at::Tensor& mean, const at::Tensor& std,
                                std::optional<at::Generator> generator) {
  const DrawsFrom numbers("aten::normal", generator);
  return standard_normal_like(mean, std).mul(std).add(mean).to(mean.scalar_type());
}

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p,
                                                  std::optional<bool> train) {
  check_probability({"aten::native_dropout", input.scalar_type()}, p);
  if (!train.value_or(true)) return {input.clone(), at::ones_like(input, at::kBool)};
  const double keep = 1 - p;
  const at::Tensor mask =
      drawn_like("aten::native_dropout", input, at::kBool, std::nullopt, Distribution::bernoulli(keep));
  return {input.mul(mask).mul(keep == 0 ? 0.0 : 1.0 / keep), mask};
}

// Where the input is not positive it is multiplied by a number in [lower, upper), which is kept as the noise.
at::Tensor noisy_rrelu(const at::Tensor& self, at::Tensor& noise, const at::Scalar& lower,
                       const at::Scalar& upper, bool training, std::optional<at::Generator> generator) {
  const DrawsFrom numbers("aten::rrelu_with_noise", generator);
  if (!training) return at::leaky_relu(self, (lower.toDouble() + upper.toDouble()) / 2);
  const at::Tensor slope = drawn_like("aten::rrelu_with_noise", self, std::nullopt, std::nullopt,
                                      Distribution::uniform(lower.toDouble(), upper.toDouble()));
  const at::Tensor factor = at::where(self.le(0), slope, at::ones_like(slope));
  noise.copy_(factor);
  return self.mul(factor);
}

at::Tensor& noisy_rrelu_in_place(at::Tensor& self, at::Tensor& noise, const at::Scalar& lower,
                                 const at::Scalar& upper, bool training,
                                 std::optional<at::Generator> generator) {
  return self.copy_(noisy_rrelu(self, noise, lower, upper, training, std::move(generator)));
}

}  // namespace

void add_random_decompositions(DecompositionTable& ops) {
  add_drawn<DrawNormal, op::normal_, op::normal_functional>(ops);
  add_drawn<DrawUniform, op::uniform_, op::uniform>(ops);
  add_drawn<DrawIntegers, op::random_, op::random__from, op::random__to, op::random, op::random_from,
            op::random_to>(ops);
  add_drawn<DrawBernoulli, op::bernoulli__float, op::bernoulli_p>(ops);
  add_drawn<DrawExponential, op::exponential_, op::exponential>(ops);
  add_drawn<DrawCauchy, op::cauchy_, op::cauchy>(ops);
  add_drawn<DrawLogNormal, op::log_normal_, op::log_normal>(ops);
  add_drawn<DrawGeometric, op::geometric_, op::geometric>(ops);
  add_drawn<DrawUnit, op::rand_like, op::rand_like_generator>(ops);
  add_drawn<DrawStandardNormal, op::randn_like, op::randn_like_generator>(ops);
  add_drawn<DrawBelow, op::randint_like, op::randint_like_generator, op::randint_like_low_dtype,
            op::randint_like_low_generator_dtype, op::randint_like_Tensor, op::randint_like_Tensor_generator>(
      ops);
  ops.add<op::bernoulli>(bernoulli);
  ops.add<op::bernoulli_Tensor>(bernoulli_tensor);
  ops.add<op::bernoulli__Tensor>(bernoulli_tensor_in_place);
  ops.add<op::normal_Tensor_float>(normal_tensor_float);
  ops.add<op::normal_float_Tensor>(normal_float_tensor);
  ops.add<op::normal_Tensor_Tensor>(normal_tensor_tensor);
  ops.add<op::native_dropout>(native_dropout);
  ops.add<op::rrelu_with_noise>(noisy_rrelu);
  ops.add<op::rrelu_with_noise_>(noisy_rrelu_in_place);
}

}  // namespace meshtorch::internal

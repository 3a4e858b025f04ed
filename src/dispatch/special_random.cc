// Random operators on distributed tensors.
#include "dispatch/special_random.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <unordered_map>

#include "comm/pending.h"
#include "dispatch/handler.h"
#include "dispatch/random_arguments.h"
#include "dispatch/write_back.h"
#include "tensor/random.h"
#include "tensor/random_fill.h"
#include "tensor/redistribute.h"

namespace meshtorch {
namespace {

// The layout of a tensor whose numbers are not pending.
const Layout& whole_layout(const DTensorMeta& meta) {
  return *meta.mesh->layout(gradient_placements(meta.layout->placements));
}

at::Tensor filled_like(const Operand& self, at::ScalarType type, const Distribution& distribution) {
  return random_tensor(self.tensor.sizes().vec(), whole_layout(*self.meta),
                       self.meta->local.options().dtype(type), distribution);
}

const Operand& distributed_self(Handler& call) {
  const Operand& self = call.operands()[0];
  TORCH_CHECK(self.meta != nullptr, "meshtorch: `", call.info().op.schema().name(),
              "` got a plain tensor beside distributed ones\n  argument ",
              call.info().arguments[self.argument].name, ": a plain tensor of shape ", self.tensor.sizes(),
              "\n  do: make it distributed with distribute_tensor");
  return self;
}

// normal_, uniform_ and their kin.
void draw_in_place(Handler& call) {
  const RandomArguments arguments(call);
  const Operand& self = distributed_self(call);
  const Distribution distribution = arguments.distribution(self.tensor.scalar_type());
  const DTensorMeta& meta = *self.meta;
  wait_pending(meta.local);
  if (meta.layout->has_partial) {
    meta.local.copy_(
        random_local(self.tensor.sizes().vec(), *meta.layout, meta.local.options(), distribution));
  } else {
    fill_random(meta.local, self.tensor.sizes(), *meta.layout, take_random_call(), distribution);
  }
  if (meta.write_back) write_through(self.tensor);
  call.finish(at::Tensor(self.tensor));
}

// rand_like, and operators that use nothing of a tensor but its shape.
void draw_like(Handler& call) {
  const RandomArguments arguments(call);
  const Operand& self = distributed_self(call);
  const at::ScalarType type = arguments.type("dtype").value_or(self.tensor.scalar_type());
  at::TensorOptions options = self.meta->local.options().dtype(type);
  if (const auto device = arguments.device("device")) options = options.device(*device);
  call.finish(random_tensor(self.tensor.sizes().vec(), whole_layout(*self.meta), options,
                            arguments.distribution(type)));
}

// A number in [0, 1) for each element, to compare with its probability. A number and a tensor of
// probabilities draw alike.
at::Tensor hits(const Operand& self, const at::Tensor& probability) {
  return at::lt(filled_like(self, at::kDouble, Distribution::uniform(0, 1)), probability);
}

void bernoulli(Handler& call) {
  const RandomArguments arguments(call);
  const Operand& self = distributed_self(call);
  call.finish(hits(self, self.tensor).to(self.tensor.scalar_type()));
}

void bernoulli_tensor(Handler& call) {
  const RandomArguments arguments(call);
  const Operand& self = distributed_self(call);
  call.finish(hits(self, arguments.tensor("p")).to(self.tensor.scalar_type()));
}

void bernoulli_tensor_in_place(Handler& call) {
  const RandomArguments arguments(call);
  const at::Tensor self = distributed_self(call).tensor;
  self.copy_(hits(call.operands()[0], arguments.tensor("p")));
  call.finish(self);
}

// normal with a tensor as mean or standard deviation: mean + std * z, lying as the larger of the two does.
void normal_of_tensors(Handler& call) {
  const RandomArguments arguments(call);
  Shape sizes = call.operands()[0].tensor.sizes().vec();
  for (const Operand& operand : call.operands()) sizes = at::infer_size(sizes, operand.tensor.sizes());
  const Layout* layout = call.mesh().replicated();
  for (const Operand& operand : call.operands()) {
    if (operand.meta != nullptr && operand.tensor.sizes() == at::IntArrayRef(sizes))
      layout = &whole_layout(*operand.meta);
  }
  const at::Tensor& first = call.operands()[0].tensor;
  const at::TensorOptions options = at::TensorOptions(first.scalar_type()).device(first.device());
  const at::Tensor z = random_tensor(sizes, *layout, options, arguments.standard_normal(first.scalar_type()));
  const at::Tensor scaled =
      arguments.is_tensor("std") ? z.mul(arguments.tensor("std")) : z.mul(arguments.deviation());
  const at::Tensor result = arguments.is_tensor("mean") ? scaled.add(arguments.tensor("mean"))
                                                        : scaled.add(arguments.number("mean"));
  call.finish(result.to(first.scalar_type()));
}

void native_dropout(Handler& call) {
  const at::Tensor input = call.operands()[0].tensor;
  const double keep = 1 - RandomArguments(call).probability("p");
  const bool trains = call.argument(2).isNone() || call.argument(2).toBool();
  if (!trains) {
    call.finish({input.clone(), at::ones_like(input, at::kBool)});
    return;
  }
  const at::Tensor mask = filled_like(call.operands()[0], at::kBool, Distribution::bernoulli(keep));
  call.finish({input.mul(mask).mul(keep == 0 ? 0.0 : 1.0 / keep), mask});
}

// Where the input is not positive it is multiplied by a number in [lower, upper), which is kept as the noise.
void rrelu_with_noise(Handler& call) {
  const RandomArguments arguments(call);
  const Operand& self = distributed_self(call);
  const double lower = arguments.number("lower");
  const double upper = arguments.number("upper");
  const bool is_in_place = call.info().arguments[0].is_written;
  at::Tensor result;
  if (arguments.flag("training")) {
    const at::Tensor slope =
        filled_like(self, self.tensor.scalar_type(), Distribution::uniform(lower, upper));
    const at::Tensor noise = at::where(self.tensor.le(0), slope, at::ones_like(slope));
    arguments.tensor("noise").copy_(noise);
    result = self.tensor.mul(noise);
  } else {
    result = at::leaky_relu(self.tensor, (lower + upper) / 2);
  }
  const at::Tensor written = self.tensor;
  call.finish(is_in_place ? written.copy_(result) : result);
}

}  // namespace

void (*random_operator(const std::string& name))(Handler&) {
  static const std::unordered_map<std::string, void (*)(Handler&)> operators{
      {"normal_", draw_in_place},
      {"uniform_", draw_in_place},
      {"random_", draw_in_place},
      {"random_.from", draw_in_place},
      {"random_.to", draw_in_place},
      {"bernoulli_.float", draw_in_place},
      {"exponential_", draw_in_place},
      {"cauchy_", draw_in_place},
      {"log_normal_", draw_in_place},
      {"geometric_", draw_in_place},
      {"normal_functional", draw_like},
      {"uniform", draw_like},
      {"random", draw_like},
      {"random.from", draw_like},
      {"random.to", draw_like},
      {"bernoulli.p", draw_like},
      {"exponential", draw_like},
      {"cauchy", draw_like},
      {"log_normal", draw_like},
      {"geometric", draw_like},
      {"rand_like", draw_like},
      {"rand_like.generator", draw_like},
      {"randn_like", draw_like},
      {"randn_like.generator", draw_like},
      {"randint_like", draw_like},
      {"randint_like.generator", draw_like},
      {"randint_like.low_dtype", draw_like},
      {"randint_like.low_generator_dtype", draw_like},
      {"randint_like.Tensor", draw_like},
      {"randint_like.Tensor_generator", draw_like},
      {"bernoulli", bernoulli},
      {"bernoulli.Tensor", bernoulli_tensor},
      {"bernoulli_.Tensor", bernoulli_tensor_in_place},
      {"normal.Tensor_float", normal_of_tensors},
      {"normal.float_Tensor", normal_of_tensors},
      {"normal.Tensor_Tensor", normal_of_tensors},
      {"native_dropout", native_dropout},
      {"rrelu_with_noise", rrelu_with_noise},
      {"rrelu_with_noise_", rrelu_with_noise},
  };
  const auto found = operators.find(name);
  return found == operators.end() ? nullptr : found->second;
}

void draw_replicated(Handler& call) {
  const RandomArguments arguments(call);
  const at::Tensor& first = call.operands()[0].tensor;
  TORCH_CHECK_NOT_IMPLEMENTED(first.is_cpu() || first.is_meta(), "meshtorch: `",
                              call.info().op.schema().name(),
                              "` draws equal numbers on all ranks on the CPU only, not on ", first.device(),
                              "\n  do: move the tensor to the CPU for this call");
  const RandomWords words = random_words(take_random_call(), std::uint64_t{0});
  call.argument(arguments.index("generator")) =
      at::detail::createCPUGenerator(join_words(words[0], words[1]));
  call.run_by_rule();
}

void refuse_to_draw(Handler& call) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "meshtorch: `", call.info().op.schema().name(),
      "` takes no generator, and each rank would draw numbers of its own\n  overload: ", call.info().name,
      "\n  do: use meshtorch::rand and its kin, or draw in place (uniform_, normal_)");
}

}  // namespace meshtorch

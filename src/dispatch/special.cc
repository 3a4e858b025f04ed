// Operators that no rule can describe.
#include "dispatch/special.h"

#include <ATen/ATen.h>

#include <cmath>
#include <numeric>
#include <unordered_map>

#include "decompose/class_split_loss.h"
#include "dispatch/handler.h"
#include "dispatch/special_random.h"
#include "operator/stack_call.h"
#include "tensor/from_local.h"

namespace meshtorch {
namespace {

at::Tensor whole(const at::Tensor& tensor) {
  const DTensorMeta* meta = meta_of(tensor);
  if (meta == nullptr) return tensor;
  TORCH_CHECK(meta->mesh->coordinate(), "meshtorch: rank ", meta->mesh->world_rank(),
              " is not in the tensor's mesh and cannot read its data");
  return whole_local(tensor);
}

// item(): the global value, on every rank.
void local_scalar_dense(Handler& call) {
  call.finish(at::_local_scalar_dense(whole(call.operands()[0].tensor)));
}

void equal(Handler& call) {
  const at::Tensor& a = call.operands()[0].tensor;
  const at::Tensor& b = call.operands()[1].tensor;
  call.finish(a.sizes() == b.sizes() && at::equal(whole(a), whole(b)));
}

// Into a plain tensor goes the whole; into a distributed one, what the rule says.
void copy(Handler& call) {
  const Operand& self = call.operands()[0];
  if (self.meta != nullptr) {
    call.run_by_rule();
    return;
  }
  const at::Tensor target = self.tensor;
  target.copy_(whole(call.operands()[1].tensor), call.argument(2).toBool());
  call.finish(target);
}

// The dims to reduce: all of them where none are given.
std::vector<std::int64_t> reduced_dims(const at::Tensor& self, const c10::IValue& dims = {}) {
  if (!dims.isNone() && !dims.toIntVector().empty()) return dims.toIntVector();
  std::vector<std::int64_t> all(static_cast<std::size_t>(self.dim()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::optional<at::ScalarType> dtype_of(const c10::IValue& dtype) {
  return dtype.isNone() ? std::nullopt : std::optional(dtype.toScalarType());
}

// How many elements of `self` went into each of `result`.
double elements_in_each(const at::Tensor& self, const at::Tensor& result) {
  return static_cast<double>(self.numel()) / static_cast<double>(std::max<std::int64_t>(result.numel(), 1));
}

// A mean is a sum divided by the global count: right for shards of any size, and pending sums stay pending.
void mean_of(Handler& call, const std::vector<std::int64_t>& dims, bool keepdim, const c10::IValue& dtype) {
  const at::Tensor& self = call.operands()[0].tensor;
  const std::optional<at::ScalarType> type = dtype_of(dtype);
  TORCH_CHECK(at::isFloatingType(type.value_or(self.scalar_type())) ||
                  at::isComplexType(type.value_or(self.scalar_type())),
              "mean(): could not infer output dtype. Input dtype must be either a floating point or complex "
              "dtype. Got: ",
              type.value_or(self.scalar_type()));
  const at::Tensor sum = at::sum(self, dims, keepdim, type);
  call.finish(sum.div(elements_in_each(self, sum)));
}

void mean(Handler& call) { mean_of(call, reduced_dims(call.operands()[0].tensor), false, call.argument(1)); }

void mean_dim(Handler& call) {
  mean_of(call, reduced_dims(call.operands()[0].tensor, call.argument(1)), call.argument(2).toBool(),
          call.argument(3));
}

// The norm of each line along `dims`, from reductions that have rules.
at::Tensor vector_norm(const at::Tensor& self, double order, const std::vector<std::int64_t>& dims,
                       bool keepdim, std::optional<at::ScalarType> dtype) {
  at::Tensor x = dtype ? self.to(*dtype) : self;
  const at::ScalarType out_type = at::toRealValueType(x.scalar_type());
  const bool accumulates_wide = at::isReducedFloatingType(out_type);
  x = x.abs();
  if (accumulates_wide) x = x.to(at::kFloat);
  at::Tensor norm;
  if (std::isinf(order)) {
    norm = order > 0 ? at::amax(x, dims, keepdim) : at::amin(x, dims, keepdim);
  } else if (order == 0) {
    norm = x.ne(0).to(x.scalar_type()).sum(dims, keepdim);
  } else if (order == 1) {
    norm = x.sum(dims, keepdim);
  } else if (order == 2) {
    norm = x.mul(x).sum(dims, keepdim).sqrt();
  } else {
    norm = x.pow(order).sum(dims, keepdim).pow(1.0 / order);
  }
  return accumulates_wide ? norm.to(out_type) : norm;
}

double order_of(const c10::IValue& order) { return order.isNone() ? 2.0 : order.toScalar().toDouble(); }

void linalg_vector_norm(Handler& call) {
  const at::Tensor& self = call.operands()[0].tensor;
  call.finish(vector_norm(self, order_of(call.argument(1)), reduced_dims(self, call.argument(2)),
                          call.argument(3).toBool(), dtype_of(call.argument(4))));
}

void norm_scalar(Handler& call) {
  const at::Tensor& self = call.operands()[0].tensor;
  call.finish(vector_norm(self, order_of(call.argument(1)), reduced_dims(self), false, std::nullopt));
}

void norm_scalar_opt_dim(Handler& call) {
  const at::Tensor& self = call.operands()[0].tensor;
  call.finish(vector_norm(self, order_of(call.argument(1)), reduced_dims(self, call.argument(2)),
                          call.argument(3).toBool(), std::nullopt));
}

// The distance of two tensors is the norm of their difference.
void dist(Handler& call) {
  const at::Tensor difference = call.argument(0).toTensor() - call.argument(1).toTensor();
  call.finish(
      vector_norm(difference, order_of(call.argument(2)), reduced_dims(difference), false, std::nullopt));
}

void foreach_norm(Handler& call) {
  std::vector<at::Tensor> norms;
  for (const at::Tensor& t : call.argument(0).toTensorVector()) {
    norms.push_back(
        vector_norm(t, order_of(call.argument(1)), reduced_dims(t), false, dtype_of(call.argument(2))));
  }
  call.finish(std::move(norms));
}

void allclose(Handler& call) {
  const at::Tensor is_close =
      at::isclose(call.argument(0).toTensor(), call.argument(1).toTensor(), call.argument(2).toDouble(),
                  call.argument(3).toDouble(), call.argument(4).toBool());
  call.finish(is_close.all().item().toBool());
}

void is_same_size(Handler& call) {
  call.finish(call.argument(0).toTensor().sizes() == call.argument(1).toTensor().sizes());
}

// Equal limits stand for none: they are the smallest and the largest element; if these are equal, one to each
// side of them.
void histc(Handler& call) {
  const at::Tensor self = call.operands()[0].tensor;
  if (call.argument(2).toScalar().toDouble() == call.argument(3).toScalar().toDouble() && self.numel() > 0) {
    const double low = self.min().item().toDouble();
    const double high = self.max().item().toDouble();
    const double margin = low == high ? 1 : 0;
    call.argument(2) = low - margin;
    call.argument(3) = high + margin;
  }
  call.run_by_rule();
}

// Variance from sums: right for shards of any size.
void var_correction(Handler& call) {
  const at::Tensor& self = call.operands()[0].tensor;
  const std::vector<std::int64_t> dims = reduced_dims(self, call.argument(1));
  const double correction = call.argument(2).isNone() ? 1.0 : call.argument(2).toScalar().toDouble();
  const at::Tensor center = at::mean(self, dims, /*keepdim=*/true);
  const at::Tensor squares = (self - center).abs().square().sum(dims, call.argument(3).toBool());
  const at::Tensor variance = squares.div(std::max(elements_in_each(self, squares) - correction, 0.0));
  call.finish(call.info().name == "std.correction" ? variance.sqrt() : variance);
}

// A tensor of the same kind with other strides, which autograd asks for when a gradient does not lie as its
// parameter does.
void new_empty_strided(Handler& call) {
  const Operand& self = call.operands()[0];
  const std::vector<std::int64_t> sizes = call.argument(1).toIntVector();
  const std::vector<std::int64_t> strides = call.argument(2).toIntVector();
  const bool same_shape = self.tensor.sizes() == at::IntArrayRef(sizes);
  const Layout* layout = same_shape ? self.meta->layout : self.meta->mesh->replicated();
  const Shape local_sizes = local_shape_of(sizes, *layout);
  at::TensorOptions options = self.meta->local.options();
  if (!call.argument(3).isNone()) options = options.dtype(call.argument(3).toScalarType());
  if (!call.argument(5).isNone()) options = options.device(call.argument(5).toDevice());
  call.finish(wrap(at::empty_strided(local_sizes, dense_strides_like(local_sizes, strides), options), layout,
                   sizes, strides));
}

// Only dims whose global size is 1 go: a shard may have size 1 where the tensor has not.
void squeeze(Handler& call) {
  const at::Tensor& self = call.operands()[0].tensor;
  std::vector<std::int64_t> ones;
  for (std::int64_t dim = 0; dim < self.dim(); ++dim) {
    if (self.size(dim) == 1) ones.push_back(dim);
  }
  call.finish(at::squeeze(self, ones));
}

std::int64_t element_count(const Handler& call) {
  std::int64_t count = 0;
  for (const Operand& operand : call.operands()) {
    if (call.info().arguments[operand.argument].name != "grad_output")
      count = std::max(count, operand.tensor.numel());
  }
  return count;
}

// A mean loss is the sum divided by the global count, and so is its gradient.
void mean_loss(Handler& call) {
  c10::IValue& reduction = call.argument(*call.info().find("reduction"));
  if (reduction.toInt() != at::Reduction::Mean) {
    call.run_by_rule();
    return;
  }
  reduction = static_cast<std::int64_t>(at::Reduction::Sum);
  const auto count = static_cast<double>(element_count(call));
  const bool is_backward = call.info().arguments[0].name == "grad_output";
  if (is_backward) call.argument(0) = call.argument(0).toTensor().div(count);
  const at::Tensor result = call.call_again();
  call.finish(is_backward ? result : result.div(count));
}

// Likewise, divided by the weights of all targets.
void nll_loss_forward(Handler& call) {
  c10::IValue& reduction = call.argument(3);
  if (reduction.toInt() != at::Reduction::Mean) {
    call.run_by_rule();
    return;
  }
  const auto weight =
      call.argument(2).isNone() ? std::optional<at::Tensor>() : call.argument(2).toOptional<at::Tensor>();
  const auto [sum, total] = at::nll_loss_forward(call.argument(0).toTensor(), call.argument(1).toTensor(),
                                                 weight, at::Reduction::Sum, call.argument(4).toInt());
  call.finish({sum / total, total});
}

// A view that comes with the strides of the whole tensor: the shards have their own.
void reshape_alias(Handler& call) {
  call.finish(call.operands()[0].tensor.view(call.argument(1).toIntVector()));
}

void refuse_as_strided(Handler& call) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "meshtorch: `", call.info().op.schema().name(),
      "` addresses memory by strides, and a split tensor has no memory of its global shape\n  do: use view, "
      "select, slice or expand");
}

// torch::load gives a tensor the values of a plain one in this way: each rank keeps its part of what it read.
void take_over(Handler& call) {
  const Operand& self = call.operands()[0];
  const Operand& source = call.operands()[1];
  const bool is_like = self.meta != nullptr && source.meta == nullptr && !self.meta->write_back &&
                       self.tensor.sizes() == source.tensor.sizes() &&
                       self.tensor.scalar_type() == source.tensor.scalar_type();
  if (!is_like) refuse_as_strided(call);
  const at::Tensor split = distribute_tensor(source.tensor.detach(), DeviceMesh(self.meta->mesh),
                                             self.meta->layout->placements, {.src_data_rank = std::nullopt});
  self.meta->local = distributed(split, "set_").local;
  call.finish(self.tensor);
}

void refuse_collective(Handler& call) {
  TORCH_CHECK_VALUE(
      false, "meshtorch: `", call.info().op.schema().name(),
      "` was called on a distributed tensor\n  do: call it on to_local(), or use redistribute()");
}

void by_rule(Handler& call) { call.run_by_rule(); }

// What `attempt` does; if it does not apply, `otherwise`.
template <bool (*attempt)(Handler&), void (*otherwise)(Handler&)>
void first_of(Handler& call) {
  if (!attempt(call)) otherwise(call);
}

}  // namespace

void write_results(Handler& call) {
  torch::jit::Stack stack;
  std::vector<at::Tensor> outs;
  for (std::size_t i = 0; i < call.info().arguments.size(); ++i) {
    if (!call.info().arguments[i].is_out) {
      stack.push_back(call.argument(i));
      continue;
    }
    for (const at::Tensor& out : tensors_in(call.argument(i))) outs.push_back(out);
  }
  call.info().functional->callBoxed(&stack);
  const std::vector<at::Tensor> results = tensors_in(stack);
  TORCH_CHECK_VALUE(outs.size() <= results.size(), "meshtorch: `", call.info().op.schema().name(), "` has ",
                    results.size(), " results, and got ", outs.size(),
                    " tensors to write to\n  overload: ", call.info().name,
                    "\n  do: pass one tensor for each result");
  for (std::size_t i = 0; i < outs.size(); ++i) {
    const bool has_size = outs[i].sizes() == results[i].sizes();
    if (!has_size && meta_of(outs[i]) != nullptr) {
      adopt(outs[i], results[i].to(outs[i].scalar_type()));
      continue;
    }
    if (!has_size) outs[i].resize_(results[i].sizes());
    outs[i].copy_(results[i]);
  }
  call.finish_written();
}

void (*special_operator(const std::string& name))(Handler&) {
  static const std::unordered_map<std::string, void (*)(Handler&)> operators{
      {"_local_scalar_dense", local_scalar_dense},
      {"equal", equal},
      {"allclose", allclose},
      {"is_same_size", is_same_size},
      {"histc", histc},
      {"dist", dist},
      {"_foreach_norm.Scalar", foreach_norm},
      {"copy_", copy},
      {"mean", mean},
      {"mean.dim", mean_dim},
      {"linalg_vector_norm", linalg_vector_norm},
      {"norm.Scalar", norm_scalar},
      {"norm.ScalarOpt_dim", norm_scalar_opt_dim},
      {"var.correction", var_correction},
      {"std.correction", var_correction},
      {"new_empty_strided", new_empty_strided},
      {"squeeze", squeeze},
      {"mse_loss", mean_loss},
      {"mse_loss_backward", mean_loss},
      {"smooth_l1_loss", mean_loss},
      {"smooth_l1_loss_backward", mean_loss},
      {"huber_loss", mean_loss},
      {"huber_loss_backward", mean_loss},
      {"soft_margin_loss", mean_loss},
      {"soft_margin_loss_backward", mean_loss},
      {"binary_cross_entropy", mean_loss},
      {"binary_cross_entropy_backward", mean_loss},
      {"_reshape_alias", reshape_alias},
      {"as_strided", refuse_as_strided},
      {"as_strided_", refuse_as_strided},
      {"set_.source_Tensor", take_over},
      {"resize_", refuse_as_strided},
      {"_log_softmax", first_of<class_split_log_softmax, by_rule>},
      {"_log_softmax_backward_data", first_of<class_split_log_softmax_backward, by_rule>},
      {"nll_loss_forward", first_of<class_split_nll_loss, nll_loss_forward>},
      {"nll_loss2d_forward", first_of<class_split_nll_loss, by_rule>},
      {"nll_loss_backward", first_of<class_split_nll_loss_backward, by_rule>},
      {"nll_loss2d_backward", first_of<class_split_nll_loss_backward, by_rule>},
  };
  if (name.starts_with("c10d::")) return refuse_collective;
  const auto found = operators.find(name);
  return found == operators.end() ? random_operator(name) : found->second;
}

}  // namespace meshtorch

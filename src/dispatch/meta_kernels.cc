// Shapes of operators for which LibTorch has a meta kernel in Python only: a model whose shards have no data
// runs through them, as on the fake backend.
#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include <array>

#include "dispatch/register_kernels.h"

namespace meshtorch::internal {
namespace {

at::Tensor index_select(const at::Tensor& self, std::int64_t dim, const at::Tensor& index) {
  std::vector<std::int64_t> sizes = self.sizes().vec();
  if (!sizes.empty()) sizes[static_cast<std::size_t>(c10::maybe_wrap_dim(dim, self.dim()))] = index.numel();
  return self.new_empty(sizes);
}

std::vector<std::int64_t> where_sizes(const at::Tensor& condition, const at::Tensor& self,
                                      const at::Tensor& other) {
  return at::infer_size(at::infer_size(condition.sizes(), self.sizes()), other.sizes());
}

at::Tensor where(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other) {
  return self.new_empty(where_sizes(condition, self, other),
                        self.options().dtype(at::result_type(self, other)));
}

at::Tensor& where_out(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other,
                      at::Tensor& out) {
  out.resize_(where_sizes(condition, self, other));
  return out;
}

at::Tensor embedding_dense_backward(const at::Tensor& grad_output, const at::Tensor& /*indices*/,
                                    c10::SymInt num_weights, c10::SymInt /*padding_idx*/, bool /*scale*/) {
  return grad_output.new_empty({num_weights.expect_int(), grad_output.size(-1)});
}

std::tuple<at::Tensor, at::Tensor> fused_rms_norm_backward(
    const at::Tensor& /*grad_out*/, const at::Tensor& input, at::IntArrayRef normalized_shape,
    const at::Tensor& /*rstd*/, const std::optional<at::Tensor>& weight, std::array<bool, 2> output_mask) {
  return {output_mask[0] ? at::empty_like(input) : at::Tensor(),
          output_mask[1] && weight ? weight->new_empty(normalized_shape) : at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor> attention(const at::Tensor& query, const at::Tensor& /*key*/,
                                             const at::Tensor& value, double /*dropout_p*/,
                                             bool /*is_causal*/,
                                             const std::optional<at::Tensor>& /*attn_mask*/,
                                             std::optional<double> /*scale*/) {
  std::vector<std::int64_t> sizes = query.sizes().vec();
  const at::Tensor logsumexp = query.new_empty(at::IntArrayRef(sizes).slice(0, 3),
                                               query.options().dtype(at::toOpMathType(query.scalar_type())));
  sizes.back() = value.size(-1);
  return {query.new_empty(sizes), logsumexp};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(
    const at::Tensor& /*grad_out*/, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& /*out*/, const at::Tensor& /*logsumexp*/, double /*dropout_p*/, bool /*is_causal*/,
    const std::optional<at::Tensor>& /*attn_mask*/, std::optional<double> /*scale*/) {
  return {query.new_empty(query.sizes()), key.new_empty(key.sizes()), value.new_empty(value.sizes())};
}

}  // namespace

void add_meta_kernels(torch::Library& library) {
  // In a Python process the operators may have kernels already.
  const auto add = [&](const char* name, const char* overload, auto kernel) {
    const auto op = c10::Dispatcher::singleton().findOp({std::string("aten::") + name, overload});
    if (!op || op->hasKernelForDispatchKey(c10::DispatchKey::Meta)) return;
    const std::string full = *overload == '\0' ? std::string(name) : std::string(name) + "." + overload;
    library.impl(full.c_str(), kernel);
  };
  add("index_select", "", TORCH_FN(index_select));
  add("where", "self", TORCH_FN(where));
  add("where", "self_out", TORCH_FN(where_out));
  add("embedding_dense_backward", "", TORCH_FN(embedding_dense_backward));
  add("_fused_rms_norm_backward", "", TORCH_FN(fused_rms_norm_backward));
  add("_scaled_dot_product_flash_attention_for_cpu", "", TORCH_FN(attention));
  add("_scaled_dot_product_flash_attention_for_cpu_backward", "", TORCH_FN(attention_backward));
}

}  // namespace meshtorch::internal

// The CPU's fused attention for distributed tensors on the meta device.
#include "dispatch/attention_on_shapes.h"

#include <ATen/ATen.h>

#include "mesh/mesh_impl.h"
#include "tensor/meta.h"

namespace meshtorch {

bool is_attention(const c10::OperatorHandle& op) {
  return op.operator_name().name == "aten::scaled_dot_product_attention";
}

bool run_attention_on_shapes(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const std::size_t count = op.schema().arguments().size();
  const auto argument = [&](std::size_t i) -> const c10::IValue& { return stack[stack.size() - count + i]; };
  const at::Tensor query = argument(0).toTensor();
  const DTensorMeta* meta = meta_of(query);
  const bool has_mask = !argument(3).isNone() && argument(3).toTensor().defined();
  const bool has_dropout = argument(4).toDouble() != 0;
  if (meta == nullptr || !query.is_meta() || meta->mesh->device_type() != c10::DeviceType::CPU) return false;
  if (query.dim() != 4 || has_mask || has_dropout) return false;
  const auto scale = argument(6).toOptional<double>();
  const at::Tensor result = std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(
      query, argument(1).toTensor(), argument(2).toTensor(), 0, argument(5).toBool(), std::nullopt, scale));
  torch::jit::drop(stack, count);
  stack.emplace_back(result);
  return true;
}

}  // namespace meshtorch

// Operators that are written by what their functional operator gives.
#include "dispatch/write_results.h"

#include <ATen/ATen.h>

#include "operator/stack_arguments.h"

namespace meshtorch::internal {

void write_results(const OperatorInfo& info, torch::jit::Stack& stack) {
  const std::size_t base = stack.size() - info.arguments.size();
  torch::jit::Stack inputs;
  std::vector<at::Tensor> outs;
  for (std::size_t i = 0; i < info.arguments.size(); ++i) {
    if (!info.arguments[i].is_out) {
      inputs.push_back(stack[base + i]);
      continue;
    }
    for (const at::Tensor& out : tensors_in(stack[base + i])) outs.push_back(out);
  }
  info.functional->callBoxed(&inputs);
  const std::vector<at::Tensor> results = tensors_in(inputs);
  TORCH_CHECK_VALUE(outs.size() <= results.size(), "meshtorch: `", info.op.schema().name(), "` has ",
                    results.size(), " results, and got ", outs.size(),
                    " tensors to write to\n  overload: ", info.name,
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
  torch::jit::Stack returned;
  for (const int index : info.returned_argument)
    returned.push_back(stack[base + static_cast<std::size_t>(index)]);
  stack.resize(base);
  for (c10::IValue& value : returned) stack.push_back(std::move(value));
}

}  // namespace meshtorch::internal

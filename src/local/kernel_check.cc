// What a kernel refuses, on a rank whose parts have no elements.
#include "local/kernel_check.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "local/local_call.h"

namespace meshtorch::internal {
namespace {

// Zeros of the kind of a local tensor, at least one along each dim; repeated in memory where the whole is.
at::Tensor with_elements(const at::Tensor& local, const at::Tensor& whole, bool repeats) {
  std::vector<std::int64_t> sizes = local.sizes().vec();
  for (std::int64_t& size : sizes) size = std::max<std::int64_t>(size, 1);
  std::vector<std::int64_t> in_memory = sizes;
  for (std::size_t dim = 0; repeats && dim < in_memory.size(); ++dim) {
    if (whole.strides()[dim] == 0) in_memory[dim] = 1;
  }
  return at::zeros(in_memory, local.options()).expand(sizes);
}

class KernelCheck {
 public:
  KernelCheck(const OperatorInfo& info, const Operands& operands, const LocalChanges& changes,
              c10::ArrayRef<at::Tensor> locals, c10::ArrayRef<c10::IValue> arguments)
      : info_(info), operands_(operands), changes_(changes), locals_(locals), arguments_(arguments) {}

  void run() const {
    if (!is_without_elements()) return;
    const bool repeats = writes_to_repeated_memory();
    try {
      call_with_zeros(repeats);
    } catch (const c10::NotImplementedError&) {
      throw;
    } catch (const std::exception&) {
      if (repeats && is_right_in_other_memory()) throw;
      // These zeros are no call that anybody made.
    }
  }

 private:
  bool is_without_elements() const {
    for (std::size_t i = 0; i < operands_.size(); ++i) {
      if (locals_[i].numel() == 0 && operands_[i].tensor.numel() > 0) return true;
    }
    return false;
  }

  bool writes_to_repeated_memory() const {
    return std::ranges::any_of(operands_, [&](const Operand& operand) {
      return info_.arguments[operand.argument].is_written &&
             at::has_internal_overlap(operand.tensor) == at::MemOverlap::Yes;
    });
  }

  bool is_right_in_other_memory() const {
    try {
      call_with_zeros(/*repeats=*/false);
    } catch (const std::exception&) {
      return false;
    }
    return true;
  }

  void call_with_zeros(bool repeats) const {
    c10::SmallVector<at::Tensor, 6> zeros;
    for (std::size_t i = 0; i < operands_.size(); ++i)
      zeros.push_back(with_elements(locals_[i], operands_[i].tensor, repeats));
    torch::jit::Stack stack = arguments_.vec();
    for (const auto& [index, value] : changes_.replaced) stack[index] = value;
    replace_operands(info_, operands_, zeros, stack.data());
    info_.op.callBoxed(&stack);
  }

  const OperatorInfo& info_;
  const Operands& operands_;
  const LocalChanges& changes_;
  c10::ArrayRef<at::Tensor> locals_;
  c10::ArrayRef<c10::IValue> arguments_;
};

}  // namespace

void check_kernel(const OperatorInfo& info, const Operands& operands, const LocalChanges& changes,
                  c10::ArrayRef<at::Tensor> locals, c10::ArrayRef<c10::IValue> arguments) {
  if (info.is_view || info.handling.kind == Handling::Kind::replicated_random || changes.stand_in ||
      !changes.masks.empty())
    return;
  KernelCheck(info, operands, changes, locals, arguments).run();
}

}  // namespace meshtorch::internal

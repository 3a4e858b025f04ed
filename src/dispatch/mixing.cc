// Whether a plain tensor may meet a distributed one.
#include "dispatch/mixing.h"

#include <ATen/DTensorState.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <utility>

#include "meshtorch/implicit_replication.h"
#include "meshtorch/loss_parallel.h"
#include "operator/libtorch_version.h"

namespace meshtorch {
using namespace internal;
namespace {

thread_local int composite_depth = 0;
thread_local const std::vector<at::Tensor>* composite_arguments = nullptr;
thread_local int implicit_depth = 0;
thread_local int loss_parallel_depth = 0;

}  // namespace

InsideComposite::InsideComposite() { ++composite_depth; }
InsideComposite::~InsideComposite() { --composite_depth; }
bool InsideComposite::is_any() { return composite_depth > 0; }

CompositeArguments::CompositeArguments(const std::vector<at::Tensor>& tensors)
    : outer_(std::exchange(composite_arguments, &tensors)) {}
CompositeArguments::~CompositeArguments() { composite_arguments = outer_; }

namespace {

// Whether the tensor shares its version counter, as views and detached tensors do.
bool is_shared(const at::Tensor& tensor) {
  return tensor.is_inference() || !tensor.unsafeGetTensorImpl()->version_counter().unique();
}

}  // namespace

bool CompositeArguments::has_made(const at::Tensor& tensor) {
  if (composite_arguments == nullptr || !InsideComposite::is_any()) return false;
  const DTensorMeta* meta = meta_of(tensor);
  const at::Tensor& held = meta != nullptr ? meta->local : tensor;
  // Not asked of reference counts: an observer on one rank may hold the tensor, and ranks must decide alike.
  if (!held.has_storage() || is_shared(held) || is_shared(tensor)) return false;
  if (meta != nullptr && meta->write_back != nullptr) return false;
  return std::ranges::none_of(*composite_arguments,
                              [&](const at::Tensor& given) { return given.is_same(tensor); });
}

implicit_replication::implicit_replication() { ++implicit_depth; }
implicit_replication::~implicit_replication() { --implicit_depth; }

loss_parallel::loss_parallel() { ++loss_parallel_depth; }
loss_parallel::~loss_parallel() { --loss_parallel_depth; }
bool internal::is_loss_parallel() { return loss_parallel_depth > 0; }

bool internal::is_one_number(const at::Tensor& t) {
  if (t.numel() < 2) return t.numel() == 1;
  for (std::int64_t dim = 0; dim < t.dim(); ++dim) {
    if (t.size(dim) > 1 && t.stride(dim) != 0) return false;
  }
  return true;
}

void internal::check_mixing(const OperatorInfo& info, const Operand& operand) {
  const bool is_made_inside = InsideComposite::is_any() || torch::autograd::get_current_node() != nullptr;
  const std::string& name = info.arguments[operand.argument].name;
  // x[[0, 2]]: the numbers stand in the program, which is the same on every rank.
  const bool is_index = info.arguments[operand.argument].has_optional_elements ||
                        (kAssignmentFillsIndices && name == "index" && info.name == "index_fill_.int_Scalar");
  // As PyTorch has it: the labels of a batch that every rank reads, and the weights of their classes.
  const bool is_of_labels =
      is_loss_parallel() && (name == "target" || (name == "weight" && info.find("target").has_value()));
  // LibTorch says so where a rule of vmap makes plain numbers.
  const bool is_allowed = implicit_depth > 0 || at::get_dtensor_allow_implicit_replication();
  if (is_made_inside || is_index || is_of_labels || is_allowed) return;
  TORCH_CHECK(
      false, "meshtorch: `", info.op.schema().name(),
      "` got a plain tensor beside distributed ones\n  argument ", name, ": a plain tensor of shape ",
      operand.tensor.sizes(),
      "\n  do: make it distributed with distribute_tensor, or, if it is equal on all ranks, open a scope of "
      "implicit_replication");
}

}  // namespace meshtorch

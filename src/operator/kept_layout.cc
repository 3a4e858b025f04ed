// The keep_layout scope.
#include "operator/kept_layout.h"

#include "meshtorch/keep_layout.h"

namespace meshtorch {
using namespace internal;
namespace {

thread_local int keep_layout_depth = 0;

bool is_parameter(const at::Tensor& tensor) {
  const at::TensorBase root = tensor.is_view() ? tensor._base() : tensor;
  return root.is_leaf() && root.requires_grad();
}

}  // namespace

keep_layout::keep_layout() { ++keep_layout_depth; }
keep_layout::~keep_layout() { --keep_layout_depth; }

bool internal::keeps_layouts() { return keep_layout_depth > 0; }

bool internal::is_kept(const Operand& operand) {
  return keeps_layouts() && operand.meta != nullptr && !is_parameter(operand.tensor);
}

}  // namespace meshtorch

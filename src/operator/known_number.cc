// What is known of a number before the call that it is an argument of.
#include "operator/known_number.h"

#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <utility>

#include "backends/pending.h"
#include "tensor/meta.h"

namespace meshtorch::internal {
namespace {

KnownNumber zero_or_not(bool is_zero) { return is_zero ? KnownNumber::zero : KnownNumber::nonzero; }

thread_local const c10::TensorImpl* known_nonzero = nullptr;

// This rank's copy of a tensor that every rank has; undefined if there is none.
at::Tensor equal_numbers(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cpu()) return {};
  const DTensorMeta* meta = meta_of(tensor);
  if (meta == nullptr) return tensor.key_set().has(kMeshKey) ? at::Tensor() : tensor;
  if (!meta->layout->is_replicated || !meta->mesh->backend().has_peers) return {};
  // A rank outside the mesh has a stand-in only: it goes on as the others do with most numbers.
  if (!meta->mesh->coordinate()) return at::ones({}, meta->local.options());
  wait_pending(meta->local);  // on all ranks, not only where it has come
  return meta->local;
}

}  // namespace

KnownNumber known_number(const at::Tensor& tensor) {
  if (known_nonzero != nullptr && tensor.unsafeGetTensorImpl() == known_nonzero) return KnownNumber::nonzero;
  if (!tensor.defined() || tensor.dim() != 0) return KnownNumber::no;
  const at::Tensor number = equal_numbers(tensor);
  if (!number.defined()) return KnownNumber::no;
  switch (number.scalar_type()) {
    case at::kDouble:
      return zero_or_not(*number.const_data_ptr<double>() == 0);
    case at::kLong:
      return zero_or_not(*number.const_data_ptr<std::int64_t>() == 0);
    case at::kFloat:
      return zero_or_not(*number.const_data_ptr<float>() == 0);
    default:
      return KnownNumber::no;
  }
}

KnownNumber known_numbers(const at::Tensor& tensor) {
  const at::Tensor numbers = equal_numbers(tensor);
  if (!numbers.defined()) return KnownNumber::no;
  return zero_or_not(numbers.count_nonzero().item<std::int64_t>() != numbers.numel());
}

KnownNonzero::KnownNonzero(const at::Tensor& tensor)
    : before_(std::exchange(known_nonzero, tensor.unsafeGetTensorImpl())) {}
KnownNonzero::~KnownNonzero() { known_nonzero = before_; }

KnownNumber known_number(const c10::IValue& argument) {
  if (argument.isTensor()) return known_number(argument.toTensor());
  if (argument.isScalar()) return zero_or_not(argument.toScalar().equal(0));
  if (!argument.isList()) return KnownNumber::no;
  const auto items = argument.toListRef();
  return zero_or_not(std::any_of(items.begin(), items.end(), [](const c10::IValue& item) {
    return known_number(item) != KnownNumber::nonzero;
  }));
}

}  // namespace meshtorch::internal

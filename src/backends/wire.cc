// How tensors travel.
#include "backends/wire.h"

#include <ATen/ATen.h>

#include "backends/pending.h"
#include "kernels/reduce.h"
#include "runtime/key.h"
#include "runtime/transforms.h"

namespace meshtorch::internal {
namespace {

using Op = c10d::ReduceOp;

// The types that all backends of c10d move and reduce.
bool is_common(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kChar:
    case at::kByte:
    case at::kInt:
    case at::kLong:
      return true;
    default:
      return false;
  }
}

Op::RedOpType on_bytes_of_bools(Op::RedOpType op) {
  switch (op) {
    case Op::SUM:
    case Op::BOR:
      return Op::MAX;
    case Op::PRODUCT:
    case Op::BAND:
      return Op::MIN;
    default:
      return op;
  }
}

}  // namespace

void wait_for_memory(const at::Tensor& t) {
  wait_pending(t);
  if (t.defined()) check_untransformed(t, "a collective");
  const bool is_distributed = t.defined() && t.key_set().has(kMeshKey);
  TORCH_CHECK_VALUE(t.defined() && t.layout() == at::kStrided && !is_distributed,
                    "meshtorch: a collective takes plain dense tensors, and got ",
                    !t.defined()     ? std::string("one that is undefined")
                    : is_distributed ? c10::str("a distributed one of shape ", t.sizes())
                                     : c10::str("one of layout ", t.layout()),
                    "\n  argument: the tensor that is sent\n  do: give `to_local()` of a distributed tensor, "
                    "or `redistribute` it "
                    "instead; give `to_dense()` of a sparse one");
}

bool lies_in_order(const at::Tensor& t) { return t.is_contiguous() && !t.is_conj() && !t.is_neg(); }

at::Tensor prepared(const at::Tensor& t) {
  wait_for_memory(t);
  const at::Tensor plain = t.detach().resolve_conj().resolve_neg().contiguous();
  return plain.dim() == 0 ? plain.view({1}) : plain;
}

at::Tensor readable(const at::Tensor& t) {
  wait_for_memory(t);
  if (lies_in_order(t)) return t;
  return t.detach().resolve_conj().resolve_neg().contiguous();
}

at::Tensor writable_copy(const at::Tensor& t) {
  wait_for_memory(t);
  return t.detach().clone(at::MemoryFormat::Contiguous);
}

at::Tensor as_cargo(const at::Tensor& t) {
  return is_common(t.scalar_type()) ? t : t.unsqueeze(-1).view(at::kByte);
}

at::Tensor from_wire_bytes(const at::Tensor& bytes, at::ScalarType type) {
  return bytes.scalar_type() == type ? bytes : bytes.view(type).squeeze(-1);
}

WireReduction::WireReduction(ReduceOp op, at::TensorList tensors, int group_size, bool backend_averages)
    : op_(static_cast<Op::RedOpType>(op)), type_(tensors[0].scalar_type()) {
  for (const at::Tensor& t : tensors) {
    TORCH_CHECK_VALUE(
        t.scalar_type() == type_, "meshtorch: a coalesced collective takes tensors of one type, not ",
        c10::toString(type_), " and ", c10::toString(t.scalar_type()), "\n  do: make one call for each type");
  }
  check_reducible(op_, tensors);
  if (op_ == Op::AVG && !backend_averages) {
    op_ = Op::SUM;
    divisor_ = group_size;
  }
  if (type_ == at::kBool) op_ = on_bytes_of_bools(op_);
}

at::Tensor WireReduction::encode(const at::Tensor& contiguous) const {
  if (is_common(type_)) return contiguous;
  if (type_ == at::kBool) return contiguous.view(at::kByte);
  if (at::isComplexType(type_)) return at::view_as_real(contiguous);
  return contiguous.to(at::isIntegralType(type_, false) ? at::kLong : at::kFloat);
}

at::Tensor WireReduction::decode(at::Tensor reduced) const {
  if (divisor_ != 1) reduced.div_(divisor_);
  if (is_common(type_)) return reduced;
  if (type_ == at::kBool) return reduced.view(at::kBool);
  if (at::isComplexType(type_)) return at::view_as_complex(reduced);
  return reduced.to(type_);
}

}  // namespace meshtorch::internal

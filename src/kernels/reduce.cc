// Elementwise reduction of the terms of several ranks.
#include "kernels/reduce.h"

#include <ATen/ATen.h>

#include "kernels/reduce_kernel.h"

namespace meshtorch::internal {
namespace {

using Op = c10d::ReduceOp;

void accumulate(at::Tensor& acc, const at::Tensor& term, Op::RedOpType op) {
  switch (op) {
    case Op::SUM:
    case Op::AVG:
      acc.add_(term);
      return;
    case Op::PRODUCT:
      acc.mul_(term);
      return;
    case Op::MIN:
      at::minimum_out(acc, acc, term);
      return;
    case Op::MAX:
      at::maximum_out(acc, acc, term);
      return;
    case Op::BAND:
      acc.bitwise_and_(term);
      return;
    case Op::BOR:
      acc.bitwise_or_(term);
      return;
    case Op::BXOR:
      acc.bitwise_xor_(term);
      return;
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, "meshtorch: reduction ", static_cast<int>(op), " is not supported");
  }
}

}  // namespace

// c10d and meshtorch list the reductions in one order.
static_assert(static_cast<int>(ReduceOp::sum) == Op::SUM && static_cast<int>(ReduceOp::avg) == Op::AVG &&
              static_cast<int>(ReduceOp::product) == Op::PRODUCT &&
              static_cast<int>(ReduceOp::min) == Op::MIN && static_cast<int>(ReduceOp::max) == Op::MAX &&
              static_cast<int>(ReduceOp::band) == Op::BAND && static_cast<int>(ReduceOp::bor) == Op::BOR &&
              static_cast<int>(ReduceOp::bxor) == Op::BXOR);

ReduceOp to_reduce_op(Op::RedOpType op) {
  TORCH_CHECK_NOT_IMPLEMENTED(op <= Op::BXOR, "meshtorch: reduction ", static_cast<int>(op),
                              " is not supported");
  return static_cast<ReduceOp>(op);
}

std::string_view reduce_op_name(Op::RedOpType op) {
  return op <= Op::BXOR ? to_string(static_cast<ReduceOp>(op)) : "unsupported";
}

void check_reducible(Op::RedOpType op, at::TensorList tensors) {
  for (const at::Tensor& t : tensors) {
    const at::ScalarType type = t.scalar_type();
    const bool is_integral = at::isIntegralType(type, /*includeBool=*/true);
    const bool is_bitwise = op == Op::BAND || op == Op::BOR || op == Op::BXOR;
    const bool is_ordered = op == Op::MIN || op == Op::MAX;
    TORCH_CHECK_VALUE(!is_bitwise || is_integral, "meshtorch: reduction ", reduce_op_name(op),
                      " is not defined for ", c10::toString(type), "\n  do: use an integer or bool tensor");
    TORCH_CHECK_VALUE(op != Op::AVG || !is_integral, "meshtorch: reduction avg is not defined for ",
                      c10::toString(type), "\n  do: use sum, or convert to a floating type first");
    TORCH_CHECK_VALUE(!at::isComplexType(type) || (!is_ordered && op != Op::PRODUCT), "meshtorch: reduction ",
                      reduce_op_name(op), " is not defined for ", c10::toString(type),
                      "\n  do: use sum or avg, or gather the tensors and reduce them yourself");
  }
}

void reduce_into(const at::Tensor& out, const std::vector<at::Tensor>& terms, Op::RedOpType op) {
  const bool is_reduced = at::isReducedFloatingType(out.scalar_type());
  at::Tensor acc = is_reduced ? terms[0].to(at::kFloat) : terms[0].clone();
  for (std::size_t i = 1; i < terms.size(); ++i)
    accumulate(acc, is_reduced ? terms[i].to(at::kFloat) : terms[i], op);
  if (op == Op::AVG) acc.div_(static_cast<double>(terms.size()));
  out.copy_(acc);
}

void reduce_bytes(char* out, std::span<const char* const> terms, std::size_t bytes, at::ScalarType type,
                  ReduceOp op) {
  if (bytes == 0) return;
  if (has_reduce_kernel(type)) return reduce_memory(out, terms, bytes, type, op);
  const auto count = static_cast<std::int64_t>(bytes / c10::elementSize(type));
  const auto tensor_at = [&](const char* memory) {
    return at::from_blob(const_cast<char*>(memory), {count}, at::TensorOptions(type));
  };
  std::vector<at::Tensor> tensors;
  for (const char* term : terms) tensors.push_back(tensor_at(term));
  reduce_into(tensor_at(out), tensors, static_cast<Op::RedOpType>(op));
}

}  // namespace meshtorch::internal

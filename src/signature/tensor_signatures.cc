// The calls of collectives on tensors: what is hashed, and how it reads.
#include "signature/tensor_signatures.h"

#include <algorithm>

namespace meshtorch::internal {
namespace {

void add_number(CallHash& hash, std::int64_t number) { hash.add(static_cast<std::uint64_t>(number)); }

void add_numbers(CallHash& hash, at::IntArrayRef numbers) {
  hash.add(numbers.size());
  for (const std::int64_t number : numbers) add_number(hash, number);
}

void add_type(CallHash& hash, const at::Tensor& t) { hash.add(static_cast<std::uint64_t>(t.scalar_type())); }

void add_shape(CallHash& hash, const at::Tensor& t) {
  add_type(hash, t);
  add_numbers(hash, t.sizes());
}

CallFacts facts_of(const at::Tensor& t, int op = -1) {
  return {static_cast<int>(t.scalar_type()), op, {t.sizes().data(), t.sizes().size()}};
}

bool all_equal(at::IntArrayRef numbers, std::int64_t value) {
  return std::all_of(numbers.begin(), numbers.end(), [&](std::int64_t number) { return number == value; });
}

std::span<const std::int64_t> span_of(at::IntArrayRef numbers) { return {numbers.data(), numbers.size()}; }

}  // namespace

std::string describe(const at::Tensor& t) { return c10::str(c10::toString(t.scalar_type()), t.sizes()); }

std::string describe(at::TensorList tensors) {
  std::string text;
  for (const at::Tensor& t : tensors) text.append(text.empty() ? "" : ", ").append(describe(t));
  return text;
}

AllReduceSignature::AllReduceSignature(at::TensorList inputs, ReduceOp op)
    : CollectiveSignature(CallKind::all_reduce), inputs_(inputs), op_(op) {
  facts_ = facts_of(inputs[0], static_cast<int>(op));
  hash_.add(static_cast<std::uint64_t>(op));
  for (const at::Tensor& t : inputs) add_shape(hash_, t);
}

std::string AllReduceSignature::arguments() const {
  return c10::str(describe(inputs_), ", ", to_string(op_));
}

AllGatherSignature::AllGatherSignature(at::TensorList inputs, std::int64_t dim, at::IntArrayRef sizes)
    : CollectiveSignature(CallKind::all_gather_into_tensor), inputs_(inputs), dim_(dim), sizes_(sizes) {
  facts_ = facts_of(inputs[0]);
  add_number(hash_, dim);
  add_numbers(hash_, sizes);
  for (const at::Tensor& t : inputs) {
    add_type(hash_, t);
    hash_.add(static_cast<std::uint64_t>(t.dim()));
    for (std::int64_t d = 0; d < t.dim(); ++d) {
      if (d != dim || inputs.size() > 1) add_number(hash_, t.size(d));  // along the dim, `sizes` says
    }
  }
}

std::string AllGatherSignature::arguments() const {
  std::string text = describe(inputs_);
  if (dim_ != 0) text += c10::str(", dim ", dim_);
  return all_equal(sizes_, sizes_[0]) ? text : text + c10::str(", sizes ", sizes_);
}

ReduceScatterSignature::ReduceScatterSignature(at::TensorList inputs, at::IntArrayRef dims, ReduceOp op)
    : CollectiveSignature(CallKind::reduce_scatter_tensor), inputs_(inputs), dims_(dims), op_(op) {
  facts_ = facts_of(inputs[0], static_cast<int>(op));
  add_numbers(hash_, dims);
  hash_.add(static_cast<std::uint64_t>(op));
  for (const at::Tensor& t : inputs) add_shape(hash_, t);
}

std::string ReduceScatterSignature::arguments() const {
  const std::string along = all_equal(dims_, 0) ? "" : c10::str(", dims ", dims_);
  return c10::str(describe(inputs_), ", ", to_string(op_), along);
}

AllToAllSignature::AllToAllSignature(const at::Tensor& input, at::IntArrayRef receives, at::IntArrayRef sends)
    : CollectiveSignature(CallKind::all_to_all_single),
      input_(input),
      rows_{span_of(sends), span_of(receives), "rows"} {
  facts_ = facts_of(input);
  add_type(hash_, input);
  add_numbers(hash_, input.sizes().slice(1));
  splits_ = &rows_;
}

std::string AllToAllSignature::arguments() const {
  const at::IntArrayRef row = input_.sizes().slice(1);
  return c10::str(c10::toString(input_.scalar_type()), row.empty() ? "" : c10::str(", rows of ", row));
}

BroadcastSignature::BroadcastSignature(const at::Tensor& tensor, int root)
    : CollectiveSignature(CallKind::broadcast), tensor_(tensor), root_(root) {
  facts_ = facts_of(tensor);
  hash_.add(static_cast<std::uint64_t>(root));
  add_shape(hash_, tensor);
}

std::string BroadcastSignature::arguments() const { return c10::str(describe(tensor_), ", root ", root_); }

OtherSignature::OtherSignature(CallKind kind, const OtherArguments& arguments)
    : CollectiveSignature(kind), arguments_(arguments) {
  const at::TensorList shown = arguments.alike.empty() ? arguments.of_type : arguments.alike;
  if (!shown.empty()) facts_ = facts_of(shown[0], arguments.op);
  for (const at::Tensor& t : arguments.alike) add_shape(hash_, t);
  for (const at::Tensor& t : arguments.of_type) add_type(hash_, t);
  add_number(hash_, arguments.op);
  add_number(hash_, arguments.root);
  splits_ = arguments.splits;
}

std::string OtherSignature::arguments() const {
  std::string text = describe(arguments_.alike);
  const auto add = [&](const std::string& part) { text.append(text.empty() ? "" : ", ").append(part); };
  if (!arguments_.of_type.empty()) add(c10::toString(arguments_.of_type[0].scalar_type()));
  if (arguments_.op >= 0) add(std::string(to_string(static_cast<ReduceOp>(arguments_.op))));
  if (arguments_.root >= 0) add(c10::str("root ", arguments_.root));
  return text;
}

GatherChunksSignature::GatherChunksSignature(at::TensorList wholes, at::IntArrayRef dims)
    : CollectiveSignature(CallKind::all_gather_into_tensor), wholes_(wholes), dims_(dims) {
  for (const std::int64_t dim : dims) hash_.add(static_cast<std::uint64_t>(dim));
  for (const at::Tensor& whole : wholes) {
    hash_.add(static_cast<std::uint64_t>(whole.scalar_type()));
    hash_.add(static_cast<std::uint64_t>(whole.dim()));
    for (const std::int64_t size : whole.sizes()) hash_.add(static_cast<std::uint64_t>(size));
  }
}

std::string GatherChunksSignature::arguments() const {
  return c10::str("chunks of ", describe(wholes_), " along dims ", dims_);
}

void add_placements(CallHash& hash, const Placements& placements) {
  hash.add(placements.size());
  for (const Placement& p : placements) {
    hash.add(static_cast<std::uint64_t>(p.kind()));
    hash.add(p.is_partial() ? static_cast<std::uint64_t>(p.reduce_op())
                            : static_cast<std::uint64_t>(p.dim()));
    hash.add(static_cast<std::uint64_t>(p.split_factor()));
  }
}

}  // namespace meshtorch::internal

// Views of distributed tensors, and writes to those that are copies.
#include "dispatch/write_back.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <optional>

#include "tensor/execute.h"
#include "tensor/from_local.h"
#include "tensor/reduced.h"

namespace meshtorch::internal {
namespace {

// The shard of the base after the view's value has been put in its place.
at::Tensor base_with(const at::Tensor& view, const WriteBack& way) {
  const DTensorMeta& base = distributed(way.base, "the base of a view");
  const at::Tensor full = at::empty_strided(way.base.sizes(), way.base.strides(), base.local.options())
                              .copy_(whole_local(way.base));
  torch::jit::Stack stack = way.arguments;
  stack[0] = full;
  way.op.callBoxed(&stack);
  const at::Tensor part =
      stack[0].isTensor() ? stack[way.result].toTensor() : stack[0].toTensorVector()[way.result];
  part.copy_(whole_local(view));
  return redistribute_local(full, way.base.sizes().vec(), *base.mesh->replicated(), *base.layout);
}

}  // namespace

at::Tensor wrap_view(at::Tensor local, const ResultPlan& plan, const at::Tensor& base, bool moved,
                     const c10::OperatorHandle& op, const torch::jit::Stack& arguments, std::size_t result) {
  // A view of a normal tensor is a normal tensor, also under inference mode: it shares the version counter.
  std::optional<c10::InferenceMode> mode;
  if (c10::InferenceMode::is_enabled()) mode.emplace(base.is_inference());
  using Kind = WriteBack::Kind;
  const DTensorMeta& meta = distributed(base, "the base of a view");
  const Kind kind = moved ? Kind::moved : local.is_alias_of(meta.local) ? Kind::shared : Kind::reshaped;
  if (kind == Kind::shared) share_writes(local, meta.local);
  at::Tensor view = wrap(std::move(local), plan.layout, plan.sizes, plan.strides);
  if (kind != Kind::shared || meta.write_back) {
    distributed(view, "a view").write_back =
        std::make_shared<WriteBack>(WriteBack{kind, base, op, arguments, result});
  }
  return view;
}

void write_through(const at::Tensor& view) {
  const WriteBack& way = *distributed(view, "a view").write_back;
  const DTensorMeta& base = distributed(way.base, "the base of a view");
  if (way.kind == WriteBack::Kind::moved) {
    base.local.copy_(base_with(view, way));
  } else if (way.kind == WriteBack::Kind::reshaped) {
    base.local.copy_(distributed(view, "a view").local.reshape(base.local.sizes()));
  }
  note_write(base.local);
  if (base.write_back) write_through(way.base);
}

}  // namespace meshtorch::internal

// Views of distributed tensors; writes to those that are copies, and to what they are copies of.
#include "dispatch/write_back.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <optional>
#include <utility>

#include "mesh/agree_on_mesh.h"
#include "runtime/blocking.h"
#include "signature/call_subject.h"
#include "tensor/execute.h"
#include "tensor/from_local.h"

namespace meshtorch::internal {
namespace {

at::Tensor result_of(const torch::jit::Stack& stack, std::size_t index) {
  return stack[0].isTensor() ? stack[index].toTensor() : stack[0].toTensorVector()[index];
}

// Each place of a tensor's memory once, where expand repeats it.
at::Tensor without_repetitions(at::Tensor tensor, at::IntArrayRef strides) {
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (strides[static_cast<std::size_t>(dim)] == 0 && tensor.size(dim) > 1)
      tensor = tensor.narrow(dim, 0, 1);
  }
  return tensor;
}

// The shard of the base after the view's value has been put in its place.
at::Tensor base_with(const at::Tensor& view, const CopiedView& way) {
  const DTensorMeta& base = distributed(way.base, "the base of a view");
  const at::Tensor full = in_plain_memory(way.base);
  torch::jit::Stack stack = way.arguments;
  stack[0] = full;
  way.op.callBoxed(&stack);
  const at::Tensor place = result_of(stack, way.result);
  without_repetitions(place, place.strides()).copy_(without_repetitions(whole_local(view), place.strides()));
  return redistribute_local(full, way.base.sizes().vec(), *base.mesh->replicated(), *base.layout);
}

// What the view was taken of, as it lies now: the tensor itself may get another shape or other data in place,
// which is nothing to its views.
at::Tensor as_it_lies(const at::Tensor& tensor) {
  const DTensorMeta& meta = distributed(tensor, "the base of a view");
  at::Tensor same = wrap(meta.local, meta.layout, tensor.sizes(), tensor.strides(), tensor.storage_offset());
  DTensorMeta& as_of = distributed(same, "the base of a view");
  as_of.write_back = meta.write_back;
  as_of.assumed = meta.assumed;
  as_of.origin = meta.origin;
  return same;
}

// While it lives, on this thread, a view is taken again of its base, which is up to date: nobody asks the
// other ranks, which may have a view in shared memory there.
thread_local bool is_taken_again = false;

class TakingAgain {
 public:
  TakingAgain() : before_(std::exchange(is_taken_again, true)) {}
  ~TakingAgain() { is_taken_again = before_; }
  TakingAgain(const TakingAgain&) = delete;
  TakingAgain& operator=(const TakingAgain&) = delete;

 private:
  const bool before_;
};

// Where the view of a plain tensor would begin.
std::int64_t offset_of_view(const at::Tensor& base, const ResultPlan& plan, std::size_t itemsize) {
  const auto bytes = base.storage_offset() * static_cast<std::int64_t>(base.itemsize());
  return bytes / static_cast<std::int64_t>(itemsize) + plan.offset;
}

}  // namespace

std::int64_t reach(at::IntArrayRef sizes, at::IntArrayRef strides) {
  std::int64_t last = 0;
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim] == 0) return 0;
    last += (sizes[dim] - 1) * strides[dim];
  }
  return last + 1;
}

at::Tensor in_plain_memory(const at::Tensor& tensor) {
  const at::Tensor whole = whole_local(tensor);
  const std::int64_t offset = tensor.storage_offset();
  const at::IntArrayRef strides = tensor.strides();
  const at::Tensor plain = at::empty({offset + reach(tensor.sizes(), strides)}, whole.options())
                               .as_strided(tensor.sizes(), strides, offset);
  without_repetitions(plain, strides).copy_(without_repetitions(whole, strides));
  return plain;
}

CopiedView::CopiedView(Kind how, const at::Tensor& of, const c10::OperatorHandle& view_op,
                       torch::jit::Stack given, std::size_t index)
    : kind(how), base(as_it_lies(of)), op(view_op), arguments(std::move(given)), result(index) {
  if (!arguments.empty()) arguments[0] = base;
  if (kind != Kind::shared) count_writes_to(distributed(base, "the base of a view").local);
  note_equal();
}

bool CopiedView::is_outdated() const {
  const DTensorMeta& of = distributed(base, "the base of a view");
  const bool is_base_outdated = of.write_back && of.write_back->is_outdated();
  const auto lock = lock_across_ranks(mutex_);
  return is_base_outdated ||
         (kind != Kind::shared && base_state_->writes().is_written_by_operators(of.local));
}

// Only the copy of another layout is made by communication.
bool CopiedView::holds(const DTensorMeta& of, Reader reader) const {
  if (kind != Kind::moved) return base_state_->holds_for(of.local);
  if (reader == Reader::this_rank) return !base_state_->writes().is_written_by_operators(of.local);
  const MovedTensor moved(of.origin);
  return all_say(*of.mesh, "whether the copy of a view still holds", base_state_->holds_for(of.local));
}

void CopiedView::note_equal() const {
  if (kind == Kind::shared) return;
  const auto lock = lock_across_ranks(mutex_);
  base_state_.emplace(distributed(base, "the base of a view").local);
}

void CopiedView::refresh(const DTensorMeta& view, Reader reader) const {
  if (is_taken_again) return;
  const DTensorMeta& of = distributed(base, "the base of a view");
  internal::refresh(of, reader);
  if (kind == Kind::shared) return;
  const auto lock = lock_across_ranks(mutex_);
  if (holds(of, reader)) return;
  const bool is_alike = kind == Kind::moved || base_state_->writes().is_written_by_operators(of.local);
  base_state_.emplace(of.local);
  const TakingAgain taking_again;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  torch::jit::Stack stack = arguments;
  op.callBoxed(&stack);
  const at::IntArrayRef strides = view.local.strides();
  without_repetitions(view.local, strides)
      .copy_(without_repetitions(local_under(result_of(stack, result), *view.layout), strides));
  is_alike ? note_write(view.local) : note_write_here(view.local);
}

at::Tensor wrap_view(at::Tensor local, const ResultPlan& plan, const at::Tensor& base, bool moved,
                     const c10::OperatorHandle& op, const torch::jit::Stack& arguments, std::size_t result) {
  // A view of a normal tensor is a normal tensor, also under inference mode: it shares the version counter.
  std::optional<c10::InferenceMode> mode;
  if (c10::InferenceMode::is_enabled()) mode.emplace(base.is_inference());
  using Kind = CopiedView::Kind;
  const DTensorMeta& meta = distributed(base, "the base of a view");
  const Kind kind = moved ? Kind::moved : local.is_alias_of(meta.local) ? Kind::shared : Kind::reshaped;
  if (kind == Kind::shared) share_writes(local, meta.local);
  // It may be what was kept of a reduction.
  if (kind == Kind::moved) note_exposed(local);
  const std::int64_t offset = offset_of_view(base, plan, local.itemsize());
  at::Tensor view = wrap(std::move(local), plan.layout, plan.sizes, plan.strides, offset);
  if (kind != Kind::shared || meta.write_back) {
    distributed(view, "a view").write_back = std::make_shared<CopiedView>(kind, base, op, arguments, result);
  }
  return view;
}

void write_through(const at::Tensor& view) {
  const auto& way = static_cast<const CopiedView&>(*distributed(view, "a view").write_back);
  const DTensorMeta& base = distributed(way.base, "the base of a view");
  way.note_equal();  // of the two, the view has what was written last
  if (way.kind == CopiedView::Kind::moved) {
    base.local.copy_(base_with(view, way));
  } else if (way.kind == CopiedView::Kind::reshaped) {
    base.local.copy_(distributed(view, "a view").local.reshape(base.local.sizes()));
  }
  note_write(base.local);
  way.note_equal();
  if (base.write_back) write_through(way.base);
}

}  // namespace meshtorch::internal

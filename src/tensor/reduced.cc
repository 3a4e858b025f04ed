// The reduced value of a pending tensor, valid while version counters say that nothing was written.
#include "tensor/reduced.h"

#include <algorithm>

#include "tensor/execute.h"
#include "tensor/from_local.h"

namespace meshtorch::internal {
namespace {

// Inference tensors have no version: nothing is kept of them.
bool has_version(const at::Tensor& tensor) { return !tensor.is_inference(); }

std::uint32_t version_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

const Reduced* kept_of(const DTensorMeta& meta) {
  const Reduced* kept = meta.reduced.get();
  const bool holds = kept != nullptr && kept->source.is_same(meta.local) &&
                     kept->source_version == version_of(kept->source) &&
                     kept->version == version_of(kept->local);
  return holds ? kept : nullptr;
}

// By the plan, which all ranks have alike: what a rank without elements shares is another matter.
bool is_sent(const at::Tensor& tensor, const Layout& from, const Layout& to) {
  const auto plan =
      plan_between(tensor.sizes().vec(), static_cast<std::int64_t>(tensor.element_size()), from, to);
  return std::ranges::any_of(plan->steps, [](const Step& step) { return is_collective(step.kind); });
}

}  // namespace

at::Tensor operand_under(const at::Tensor& tensor, const Layout& to) {
  DTensorMeta& meta = distributed(tensor, "an operand");
  if (!meta.layout->has_partial || to.has_partial) return local_under(tensor, to);
  const Reduced* kept = kept_of(meta);
  if (kept != nullptr && kept->layout == &to) return kept->local;
  const at::Tensor result = kept != nullptr
                                ? redistribute_local(kept->local, tensor.sizes().vec(), *kept->layout, to)
                                : local_under(tensor, to);
  // What is cut from what is there already is not worth keeping.
  const bool is_new = is_sent(tensor, kept != nullptr ? *kept->layout : *meta.layout, to);
  if (!is_new || !has_version(result) || !has_version(meta.local)) return result;
  meta.reduced =
      std::make_shared<Reduced>(Reduced{&to, result, version_of(result), meta.local, version_of(meta.local)});
  return result;
}

const Layout* reduced_layout(const DTensorMeta& meta) {
  const Reduced* kept = kept_of(meta);
  return kept != nullptr ? kept->layout : nullptr;
}

std::optional<std::uint32_t> writes_of(const at::Tensor& local) {
  return has_version(local) ? std::optional(version_of(local)) : std::nullopt;
}

void note_write(const at::Tensor& local) {
  if (has_version(local)) local.unsafeGetTensorImpl()->bump_version();
}

void share_writes(const at::Tensor& view, const at::Tensor& base) {
  if (has_version(view) && has_version(base))
    view.unsafeGetTensorImpl()->set_version_counter(base.unsafeGetTensorImpl()->version_counter());
}

}  // namespace meshtorch::internal

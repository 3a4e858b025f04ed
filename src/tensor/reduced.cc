// The reduced value of a pending tensor.
#include "tensor/reduced.h"

#include <algorithm>
#include <set>

#include "tensor/execute.h"
#include "tensor/from_local.h"
#include "world/agree.h"

namespace meshtorch::internal {
namespace {

std::shared_ptr<const Reduced> kept_of(const DTensorMeta& meta) {
  if (meta.reduced.is_empty()) return nullptr;
  auto kept = meta.reduced.get();
  return kept && kept->source.is_same(meta.local) ? kept : nullptr;
}

// The axes whose ranks communicate, by the plan, which all ranks have alike.
std::vector<int> axes_of_move(const at::Tensor& tensor, const Layout& from, const Layout& to) {
  const auto plan =
      plan_between(tensor.sizes().vec(), static_cast<std::int64_t>(tensor.element_size()), from, to);
  std::set<int> axes;
  for (const Step& step : plan->steps) {
    if (is_collective(step.kind)) axes.insert(step.axes.begin(), step.axes.end());
  }
  return {axes.begin(), axes.end()};
}

bool holds_on_this_rank(const Reduced& kept) {
  return kept.state.holds_for(kept.local) && kept.source_state.holds_for(kept.source);
}

bool holds_on_all_ranks(const Reduced& kept) {
  const bool holds_here = holds_on_this_rank(kept);
  const MeshImpl& mesh = *kept.layout->mesh;
  if (!mesh.coordinate() || !mesh.backend().has_peers) return holds_here;
  return all_say(mesh.group(kept.axes), "whether a reduction that was kept still holds", holds_here);
}

// Reduces the tensor and keeps the value, if it took communication: what is cut from what is there already is
// not worth keeping.
at::Tensor reduce_and_keep(const at::Tensor& tensor, DTensorMeta& meta, const Layout& to) {
  const at::Tensor result = fresh_local_under(tensor, to);
  std::vector<int> axes = axes_of_move(tensor, *meta.layout, to);
  const bool can_ask = meta.mesh->device_type() == at::kCPU;  // elsewhere the host would wait for the device
  if (axes.empty() || !can_ask || result.is_inference() || meta.local.is_inference()) return result;
  meta.reduced.set(std::make_shared<Reduced>(
      Reduced{&to, std::move(axes), result, MemoryState(result), meta.local, MemoryState(meta.local)}));
  return result;
}

}  // namespace

at::Tensor operand_under(const at::Tensor& tensor, const Layout& to) {
  DTensorMeta& meta = distributed(tensor, "an operand");
  if (!meta.layout->has_partial || to.has_partial) return fresh_local_under(tensor, to);
  const MovedTensor moved(meta.origin);
  const auto kept = kept_of(meta);
  if (!kept) return reduce_and_keep(tensor, meta, to);
  // Through the layout that was kept, also where it has to be made again: ranks that differ only on other
  // axes may still have it.
  const at::Tensor local =
      holds_on_all_ranks(*kept) ? kept->local : reduce_and_keep(tensor, meta, *kept->layout);
  return redistribute_local(local, tensor.sizes().vec(), *kept->layout, to);
}

ScaledTerms::ScaledTerms(DTensorMeta& meta) : meta_(meta), kept_(kept_of(meta)) {
  if (kept_ && !holds_on_this_rank(*kept_)) kept_ = nullptr;
}

void ScaledTerms::keep(const std::function<at::Tensor(const at::Tensor&)>& scale) {
  if (!kept_ || !kept_->source.is_same(meta_.local)) return;
  const at::Tensor scaled = scale(kept_->local);
  meta_.reduced.set(std::make_shared<Reduced>(Reduced{kept_->layout, kept_->axes, scaled, MemoryState(scaled),
                                                      meta_.local, MemoryState(meta_.local)}));
}

const Layout* reduced_layout(const DTensorMeta& meta) {
  const auto kept = kept_of(meta);
  return kept ? kept->layout : nullptr;
}

}  // namespace meshtorch::internal

// Groups of ranks, from whatever names them.
#include "meshtorch/group.h"

#include <array>
#include <numeric>

#include "world/rank_context.h"

namespace meshtorch {
using namespace internal;
namespace {

std::shared_ptr<const GroupImpl> adopt(const c10::intrusive_ptr<c10d::ProcessGroup>& process_group) {
  TORCH_CHECK_VALUE(process_group, "meshtorch: the process group is null\n  do: give one, or name ranks");
  if (const auto context = current_rank_or_null()) {
    if (auto known = context->find_group(process_group)) return known;
  }
  auto impl = std::make_shared<GroupImpl>();
  // c10d does not tell which world ranks a group has; they are known for meshtorch's own groups only.
  impl->ranks.resize(static_cast<std::size_t>(process_group->getSize()));
  std::iota(impl->ranks.begin(), impl->ranks.end(), 0);
  impl->rank = process_group->getRank();
  impl->process_group = process_group;
  return impl;
}

constexpr std::array<std::string_view, 17> kNames{
    "all_reduce",
    "all_reduce_coalesced",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
    "all_to_all",
    "all_to_all_single",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send",
    "recv",
    "barrier",
};

}  // namespace

std::string_view to_string(Collective collective) { return kNames.at(static_cast<std::size_t>(collective)); }

Group::Group() : impl_(current_rank()->default_group()) {}
Group::Group(const c10::intrusive_ptr<c10d::ProcessGroup>& process_group) : impl_(adopt(process_group)) {}
Group::Group(std::shared_ptr<const GroupImpl> impl) : impl_(std::move(impl)) {}

int Group::rank() const { return impl_->rank; }
int Group::size() const { return static_cast<int>(impl_->ranks.size()); }
const std::vector<std::int64_t>& Group::ranks() const { return impl_->ranks; }

const c10::intrusive_ptr<c10d::ProcessGroup>& Group::process_group() const {
  TORCH_CHECK(!impl_->is_left, "meshtorch: the group of ranks ", c10::IntArrayRef(impl_->ranks),
              " belongs to a world that was destroyed\n  do: make meshes and tensors again after "
              "init_process_group()");
  TORCH_CHECK(!is_another_rank(impl_->owner), "meshtorch: a mesh, group or distributed tensor of rank ",
              impl_->owner_rank, " was used by rank ", current_rank()->world().rank,
              "\n  do: make it on each rank, in variables of the rank's own; share plain tensors only");
  TORCH_CHECK(impl_->process_group, "meshtorch: this rank is not in the group of ranks ",
              c10::IntArrayRef(impl_->ranks), "\n  do: call its collectives on those ranks only");
  return impl_->process_group;
}

}  // namespace meshtorch

// Calls on lists whose elements lie on several meshes.
#include "dispatch/mesh_groups.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "meshtorch/dtensor.h"
#include "operator/operand.h"

namespace meshtorch::internal {
namespace {

using Positions = std::vector<std::size_t>;

struct MeshGroup {
  const MeshImpl* mesh;  // null: plain tensors
  Positions positions;
};

// The elements by their mesh, in order of appearance; nothing if the lists are not of one length, or the
// tensors at one position lie on different meshes.
std::optional<std::vector<MeshGroup>> groups_of(const OperatorInfo& info,
                                                c10::ArrayRef<c10::IValue> arguments) {
  std::size_t length = 0;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (info.arguments[i].kind != ArgumentInfo::Kind::tensor_list || !arguments[i].isList()) continue;
    const std::size_t size = arguments[i].toListRef().size();
    if (size != 0 && length != 0 && size != length) return std::nullopt;
    length = std::max(length, size);
  }
  std::vector<std::optional<const MeshImpl*>> meshes(length);
  bool fits = true;
  visit_tensors(info, arguments, [&](const at::Tensor& tensor, std::size_t, int element) {
    if (element < 0) {
      fits &= tensor.numel() <= 1;  // one number for all elements
      return;
    }
    const DTensorMeta* meta = meta_of(tensor);
    if (meta == nullptr && tensor.dim() == 0) return;  // a number goes along
    const MeshImpl* mesh = meta != nullptr ? meta->mesh.get() : nullptr;
    auto& known = meshes[static_cast<std::size_t>(element)];
    fits &= known.value_or(mesh) == mesh;
    known = mesh;
  });
  if (!fits) return std::nullopt;
  std::vector<MeshGroup> groups;
  for (std::size_t i = 0; i < length; ++i) {
    const MeshImpl* mesh = meshes[i].value_or(nullptr);
    auto group = std::ranges::find(groups, mesh, &MeshGroup::mesh);
    if (group == groups.end()) group = groups.insert(group, {mesh, {}});
    group->positions.push_back(i);
  }
  return groups;
}

// A list that has an element for each position keeps those of the group.
c10::IValue part_of(const c10::IValue& value, const Positions& positions, std::size_t length) {
  if (!value.isList() || value.toListRef().size() != length) return value;
  const auto items = value.toListRef();
  c10::impl::GenericList part(value.toList().elementType());
  for (const std::size_t position : positions) part.push_back(items[position]);
  return part;
}

// The numbers that a call reads and that lie on another mesh than its other distributed tensors do.
struct NumbersOnMesh {
  std::shared_ptr<MeshImpl> mesh;
  std::vector<at::Tensor> numbers;
};
struct NumbersElsewhere {
  MeshImpl* mesh = nullptr;  // of the call; null if all its distributed tensors are numbers
  std::vector<NumbersOnMesh> groups;
};

// Returns nothing if those other tensors lie on several meshes themselves.
std::optional<NumbersElsewhere> numbers_elsewhere(const OperatorInfo& info,
                                                  c10::ArrayRef<c10::IValue> arguments) {
  const auto is_number = [&](const at::Tensor& tensor, std::size_t argument) {
    return tensor.dim() == 0 && !info.arguments[argument].is_written &&
           !(at::GradMode::is_enabled() && tensor.requires_grad());
  };
  NumbersElsewhere found;
  bool fits = true;
  visit_tensors(info, arguments, [&](const at::Tensor& tensor, std::size_t argument, int) {
    const DTensorMeta* meta = meta_of(tensor);
    if (meta == nullptr || is_number(tensor, argument)) return;
    fits = fits && (found.mesh == nullptr || found.mesh == meta->mesh.get());
    found.mesh = meta->mesh.get();
  });
  if (!fits) return std::nullopt;
  visit_tensors(info, arguments, [&](const at::Tensor& tensor, std::size_t argument, int) {
    const DTensorMeta* meta = meta_of(tensor);
    if (meta == nullptr || !is_number(tensor, argument) || meta->mesh.get() == found.mesh) return;
    auto group = std::ranges::find(found.groups, meta->mesh, &NumbersOnMesh::mesh);
    if (group == found.groups.end()) group = found.groups.insert(group, {meta->mesh, {}});
    group->numbers.push_back(tensor);
  });
  return found;
}

// Whether every rank that makes the call has all the numbers: the meshes have the same ranks, or were cut
// from meshes that have.
bool has_every_rank_all(const NumbersElsewhere& found) {
  const auto ranks_of = [](MeshImpl& mesh) {
    MeshImpl::Numbers ranks = mesh.ranks_of_root();
    std::ranges::sort(ranks);
    return ranks;
  };
  const MeshImpl::Numbers all = ranks_of(found.mesh != nullptr ? *found.mesh : *found.groups[0].mesh);
  return std::ranges::all_of(found.groups,
                             [&](const NumbersOnMesh& group) { return ranks_of(*group.mesh) == all; });
}

using PlainNumbers = std::unordered_map<const c10::TensorImpl*, at::Tensor>;

PlainNumbers made_plain(const std::vector<NumbersOnMesh>& groups) {
  PlainNumbers plain;
  for (const NumbersOnMesh& group : groups) {
    const std::vector<at::Tensor> values = DTensor(at::stack(group.numbers)).full_tensor().unbind();
    for (std::size_t i = 0; i < values.size(); ++i) plain[group.numbers[i].unsafeGetTensorImpl()] = values[i];
  }
  return plain;
}

c10::IValue with_plain(const c10::IValue& value, const PlainNumbers& numbers) {
  const auto one = [&](const at::Tensor& tensor) {
    const auto found = numbers.find(tensor.unsafeGetTensorImpl());
    return found == numbers.end() ? tensor : found->second;
  };
  if (value.isTensor()) return one(value.toTensor());
  if (!value.isTensorList()) return value;
  std::vector<at::Tensor> list;
  for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(one(tensor));
  return list;
}

}  // namespace

bool run_on_numbers(const OperatorInfo& info, torch::jit::Stack& stack) {
  const std::size_t base = stack.size() - info.arguments.size();
  const auto found = numbers_elsewhere(info, c10::ArrayRef<c10::IValue>(stack).slice(base));
  if (!found || found->groups.empty() || !has_every_rank_all(*found)) return false;
  const PlainNumbers plain = made_plain(found->groups);
  for (std::size_t i = base; i < stack.size(); ++i) stack[i] = with_plain(stack[i], plain);
  info.op.callBoxed(&stack);
  return true;
}

bool run_by_meshes(const OperatorInfo& info, torch::jit::Stack& stack) {
  if (!info.pairs_lists) return false;
  const std::size_t base = stack.size() - info.arguments.size();
  const auto groups = groups_of(info, c10::ArrayRef<c10::IValue>(stack).slice(base));
  if (!groups || groups->size() < 2) return false;
  std::size_t length = 0;
  for (const MeshGroup& group : *groups) length += group.positions.size();
  std::vector<std::vector<at::Tensor>> results(info.returned_argument.size());
  for (const MeshGroup& group : *groups) {
    torch::jit::Stack call;
    for (std::size_t i = 0; i < info.arguments.size(); ++i)
      call.push_back(part_of(stack[base + i], group.positions, length));
    info.op.callBoxed(&call);
    for (std::size_t r = 0; r < results.size(); ++r) {
      const std::vector<at::Tensor> part = call[r].toTensorVector();
      if (part.empty()) continue;  // state that is not in use
      results[r].resize(length);
      for (std::size_t i = 0; i < part.size(); ++i) results[r][group.positions[i]] = part[i];
    }
  }
  stack.resize(base);
  for (std::vector<at::Tensor>& result : results) stack.emplace_back(std::move(result));
  return true;
}

}  // namespace meshtorch::internal

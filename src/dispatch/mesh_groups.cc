// Calls on lists whose elements lie on several meshes.
#include "dispatch/mesh_groups.h"

#include <algorithm>
#include <optional>

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

}  // namespace

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

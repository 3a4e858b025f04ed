// A group of ranks: the default one, one axis of a mesh, a list of ranks, or a c10d::ProcessGroup of the
// user's.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "meshtorch/api.h"

namespace c10d {
class ProcessGroup;
}

namespace meshtorch {

class DeviceMesh;
namespace internal {
struct GroupImpl;
}  // namespace internal

// The collectives that are told apart. to_string gives PyTorch's names: "all_reduce",
// "all_gather_into_tensor", …
enum class Collective : std::uint8_t {
  all_reduce,
  all_reduce_coalesced,
  all_gather,
  all_gather_into_tensor,
  all_gather_into_tensor_coalesced,
  reduce_scatter,
  reduce_scatter_tensor,
  reduce_scatter_tensor_coalesced,
  all_to_all,
  all_to_all_single,
  broadcast,
  reduce,
  gather,
  scatter,
  send,
  recv,
  barrier,
};
MESHTORCH_API std::string_view to_string(Collective collective);

// The ranks that take part in a collective. A handle; copies are cheap.
class MESHTORCH_API Group {
 public:
  // All ranks.
  Group();
  // A mesh of one axis, or one axis of a larger mesh.
  Group(const DeviceMesh& mesh);
  Group(const DeviceMesh& mesh, std::int64_t axis);
  Group(const DeviceMesh& mesh, const std::string& axis);
  // The ranks with these numbers, in this order. Every member must ask for it; others may.
  Group(const std::vector<std::int64_t>& ranks);
  Group(std::initializer_list<std::int64_t> ranks);
  // A group made elsewhere.
  Group(const c10::intrusive_ptr<c10d::ProcessGroup>& process_group);
  explicit Group(std::shared_ptr<const internal::GroupImpl> impl);
  // Moves are copies; a Group is never empty.
  Group(const Group&) = default;
  Group& operator=(const Group&) = default;
  ~Group() = default;

  // This rank's number in the group, -1 if it is not a member.
  int rank() const;
  int size() const;
  // The members' numbers in the world, in the order of the group.
  const std::vector<std::int64_t>& ranks() const;
  // LibTorch's group. Throws if this rank is not a member.
  const c10::intrusive_ptr<c10d::ProcessGroup>& process_group() const;

  friend bool operator==(const Group&, const Group&) = default;

 private:
  std::shared_ptr<const internal::GroupImpl> impl_;
};

}  // namespace meshtorch

// What was decided about one call: where operands go, how results lie. Kept for the next call that looks the
// same.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/shard.h"
#include "mesh/layout.h"
#include "mesh/per_mesh_cache.h"
#include "rules/bind.h"

namespace meshtorch::internal {

struct ResultPlan {
  const Layout* layout = nullptr;
  Shape sizes;
  Shape strides;
  // Of a view, in the memory of a plain tensor: from where its base begins.
  std::int64_t offset = 0;
  bool is_open = false;  // sizes and strides may depend on data: each call's local result tells them
};

// An index argument that names places in a split dim of a table, to look them up or to write to them.
struct IndexMask {
  std::size_t argument;
  std::size_t table;
  std::int64_t dim;    // of the table
  std::int64_t begin;  // this rank's part of the dim
  std::int64_t size;
  std::int64_t whole_size;  // of the dim
  bool is_written = false;
};

// On a rank that has no element of some tensor, where the operator's kernels refuse such: the call is made on
// zeros, and nothing of its results is kept.
struct StandIn {
  struct Dim {
    std::size_t tensor;
    std::int64_t dim;
    std::int64_t size;
  };
  std::vector<Dim> arguments;  // their dims that are 0 long here become `size` long
  std::vector<Dim> results;  // and the other way round; a result without such a dim is a term of a sum: zeros
};

// What the call of one rank needs changed, compared with the global one.
struct LocalChanges {
  std::vector<std::pair<std::size_t, c10::IValue>> replaced;
  std::vector<IndexMask> masks;
  std::optional<StandIn> stand_in;
};

struct Decision {
  std::uint64_t rules_version = 0;  // when it was made
  // For each operand tensor: the layout to bring it to, null to leave it.
  std::vector<const Layout*> moves;
  LocalChanges changes;
  std::vector<const Layout*> layouts;  // of the results of the rule
  // One for each result tensor, known when the first local call has returned.
  std::vector<ResultPlan> results;
  // The rule bound to the call, null where it runs on whole tensors; and the results of a run on shapes alone
  // if there was one, until the results are known.
  std::shared_ptr<const BoundRule> bound;
  std::vector<at::Tensor> shapes;
};

// A call as numbers: the operator, each tensor's layout, type, sizes and strides, and the arguments that
// matter.
using CallKey = c10::SmallVector<std::int64_t, 96>;

// Composite operators that were found not to decompose on distributed tensors, with gradients or without.
class WholeCalls {
 public:
  bool contains(const c10::OperatorHandle& op, bool has_gradient) const {
    const std::scoped_lock lock(mutex_);
    return found_[has_gradient ? 1 : 0].contains(op);
  }
  void insert(const c10::OperatorHandle& op, bool has_gradient) {
    const std::scoped_lock lock(mutex_);
    found_[has_gradient ? 1 : 0].insert(op);
  }

 private:
  mutable std::mutex mutex_;
  std::array<std::unordered_set<c10::OperatorHandle>, 2> found_;
};

// Decisions made before the last rule was registered are forgotten. Bounded: when full it is emptied, since
// programs repeat few calls many times and refill it at once.
class DecisionCache : public PerMeshCache {
 public:
  static constexpr std::size_t kCapacity = 16384;

  std::shared_ptr<const Decision> find(const CallKey& key);
  void insert(const CallKey& key, std::shared_ptr<const Decision> decision);

  std::size_t size() const;
  std::uint64_t hits() const {
    const std::scoped_lock lock(mutex_);
    return hits_;
  }
  std::uint64_t misses() const {
    const std::scoped_lock lock(mutex_);
    return misses_;
  }
  WholeCalls& whole_calls() { return whole_calls_; }

 private:
  struct Hash {
    std::size_t operator()(const CallKey& key) const;
  };

  mutable std::mutex mutex_;
  std::unordered_map<CallKey, std::shared_ptr<const Decision>, Hash> decisions_;
  std::uint64_t rules_version_ = 0;  // of all that is kept
  std::uint64_t hits_ = 0;
  std::uint64_t misses_ = 0;
  WholeCalls whole_calls_;
};

// What was decided about operators on tensors of this mesh: it dies with the mesh, so that no key can outlive
// its layout.
DecisionCache& decisions_of(MeshImpl& mesh);

}  // namespace meshtorch::internal

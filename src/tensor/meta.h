// What makes a TensorImpl a DTensor: its local tensor and its layout, kept in the impl's backend meta.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "core/shard.h"
#include "mesh/layout.h"
#include "mesh/mesh_impl.h"
#include "meshtorch/api.h"
#include "runtime/key.h"
#include "signature/call_subject.h"

namespace meshtorch::internal {

struct DTensorMeta;

// Who reads a tensor: an operator, which all ranks of the mesh call and in which they can ask each other; or
// a call that one rank may make by itself, such as to_local().
enum class Reader : std::uint8_t { all_ranks, this_rank };

// What a view that could not share the memory of its base knows of it (dispatch/write_back.h).
struct WriteBack {
  virtual ~WriteBack() = default;
  // Returns whether operators have written to the base since the view was last like it.
  virtual bool is_outdated() const = 0;
  // Brings the view up to date. For `all_ranks` if the base was written on any rank, in whatever way; for
  // `this_rank` if operators have written to it, which all ranks know.
  virtual void refresh(const DTensorMeta& view, Reader reader) const = 0;
};

// A global shape that was concluded from this rank's shard alone, by from_local: the ranks have to compare
// before they communicate. Shared by all tensors that were computed from it, so that they do so once.
struct AssumedShape;
using AssumedShapePtr = std::shared_ptr<AssumedShape>;

// The value of a pending tensor after its reduction (tensor/reduced.h).
struct Reduced;

// A replica of which ranks compare parts in turn, from the first time on that an operator reads it: until
// then the program may still fill its memory.
class ComparedReplica {
 public:
  // Says that an operator reads it.
  void note_read() const {
    if (!is_read()) is_read_.store(true, std::memory_order_relaxed);
  }
  bool is_read() const { return is_read_.load(std::memory_order_relaxed); }

 private:
  mutable std::atomic<bool> is_read_ = false;
};

// What an operator that reads a tensor keeps in it. Several threads may read one tensor.
class ReductionSlot {
 public:
  bool is_empty() const { return is_empty_.load(std::memory_order_acquire); }
  std::shared_ptr<const Reduced> get() const {
    const std::scoped_lock lock(mutex_);
    return value_;
  }
  void set(std::shared_ptr<const Reduced> value) {
    const std::scoped_lock lock(mutex_);
    is_empty_.store(value == nullptr, std::memory_order_release);
    value_ = std::move(value);
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const Reduced> value_;
  std::atomic<bool> is_empty_ = true;
};

struct DTensorMeta final : c10::BackendMeta {
  at::Tensor local;
  const Layout* layout = nullptr;
  std::shared_ptr<MeshImpl> mesh;  // keeps the layout alive
  std::shared_ptr<const WriteBack> write_back;
  AssumedShapePtr assumed;  // null if the shape is known
  TensorOrigin origin;
  // Kept by the tensors that have the memory of a replica that ranks compare; null for others.
  std::shared_ptr<const ComparedReplica> replica;
  ReductionSlot reduced;  // empty if no operator has read the whole of a pending tensor

  // set_data() and its kin copy the meta: each tensor has its own.
  c10::intrusive_ptr<c10::BackendMeta> clone(const c10::intrusive_ptr<c10::BackendMeta>& self) const override;
};

// Before a tensor is read: one that is a copied view sees what was written to its base.
inline void refresh(const DTensorMeta& meta, Reader reader) {
  if (meta.write_back) meta.write_back->refresh(meta, reader);
}

// What is said where LibTorch looks for memory that a distributed tensor has not, with where and what to do.
inline constexpr const char* kHasNoMemory = "meshtorch: a distributed tensor has no memory of its own";

// Returns null if the tensor is plain.
inline DTensorMeta* meta_of(const at::Tensor& tensor) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (!impl->key_set().has(kMeshKey)) return nullptr;
  return static_cast<DTensorMeta*>(impl->get_backend_meta());
}

// Like meta_of, but throws if the tensor is plain: a ValueError that names `where`, such as
// "redistribute".
[[noreturn]] MESHTORCH_FOR_PYTHON void reject_plain(const at::Tensor& tensor, const char* where);
inline DTensorMeta& distributed(const at::Tensor& tensor, const char* where) {
  DTensorMeta* meta = meta_of(tensor);
  if (meta == nullptr) reject_plain(tensor, where);
  return *meta;
}

// A DTensor of the given global sizes, strides and offset. `local` must be a plain tensor without a graph.
at::Tensor wrap(at::Tensor local, const Layout* layout, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                std::int64_t offset = 0);

// The same DTensor object with the data, layout and sizes of another one: what in-place shape changes and
// out= do.
void adopt(const at::Tensor& self, const at::Tensor& other);

// Strides of a dense tensor of these sizes, in the order of `like` (any strides of the same rank); row-major
// without it.
Shape dense_strides(c10::IntArrayRef sizes);
Shape dense_strides_like(c10::IntArrayRef sizes, c10::IntArrayRef like);

// The shape of this rank's shard. A rank outside the mesh holds a tensor of the shape that coordinate 0
// holds, and takes no part in any communication, so that the program of all ranks is the same.
Shape local_shape_of(c10::IntArrayRef sizes, const Layout& layout);
// This rank's coordinate, 0 on every axis for a rank outside the mesh.
MESHTORCH_FOR_PYTHON Shape coordinate_in(const MeshImpl& mesh);

// Checks placements against the mesh and the rank of a tensor, and gives the layout. Throws ValueError.
const Layout* checked_layout(MeshImpl& mesh, const Placements& placements, std::int64_t tensor_rank);

}  // namespace meshtorch::internal

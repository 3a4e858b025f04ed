// How tensors move between the ranks of one group. There are two ways: ranks that share memory read each
// other's tensors; on every other backend tensors are packed and given to c10d.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <variant>
#include <vector>

#include "meshtorch/group.h"
#include "meshtorch/placement.h"
#include "redistribute/prepared_move.h"
#include "transport/peer_messages.h"

namespace meshtorch::internal {

class MemoryBackend;

using Tensors = std::vector<at::Tensor>;
using Splits = std::vector<std::int64_t>;

// The functions take arguments that were checked as far as no data is needed. Results may be pending.
class Transport {
 public:
  // The group must outlive it.
  explicit Transport(const Group& group) : group_(group) {}
  virtual ~Transport() = default;

  virtual at::Tensor all_reduce(const at::Tensor& self, ReduceOp op) const = 0;
  virtual Tensors all_reduce_coalesced(const Tensors& self, ReduceOp op) const = 0;
  // Rank r has sizes[r] of dim `dim`; no sizes: all have the same.
  virtual at::Tensor all_gather(const at::Tensor& self, std::int64_t dim, const Splits& sizes) const = 0;
  virtual Tensors all_gather_coalesced(const Tensors& self) const = 0;
  // Each rank gets its chunk of `dim`, as torch::chunk cuts.
  virtual at::Tensor reduce_scatter(const at::Tensor& self, ReduceOp op, std::int64_t dim) const = 0;
  virtual Tensors reduce_scatter_coalesced(const Tensors& self, ReduceOp op, const Splits& dims) const = 0;
  // Rows of dim 0; the result has the shape `sizes`.
  virtual at::Tensor all_to_all(const at::Tensor& self, const Splits& to_receive, const Splits& to_send,
                                c10::IntArrayRef sizes) const = 0;
  virtual at::Tensor broadcast(const at::Tensor& self, int source) const = 0;
  // Returns the part of rank `source`'s data that is for this rank: parts[r] is for rank r. Other ranks give
  // parts of the same shapes, of which nothing is read.
  at::Tensor scatter(const Tensors& parts, int source) const;
  virtual void barrier() const = 0;

  // One step of a redistribution on this rank.
  virtual at::Tensor gather_boxes(const PreparedStep& step, const at::Tensor& local) const = 0;
  virtual at::Tensor exchange_boxes(const PreparedStep& step, const at::Tensor& local) const = 0;
  virtual at::Tensor reduce_boxes(const PreparedStep& step, const at::Tensor& local) const = 0;

  // Collectives of several tensors in two halves; see collectives/chunks.h.
  virtual std::function<void()> start_gather_chunks(const Tensors& chunks, const Tensors& wholes,
                                                    const Splits& dims) const = 0;
  virtual std::function<Tensors()> start_reduce_chunks(const Tensors& terms, ReduceOp op,
                                                       const Splits& dims) const = 0;
  virtual std::function<Tensors()> start_reduce_wholes(const Tensors& terms, ReduceOp op) const = 0;

  // Sends and receives what is under way between the two ranks of the group, of which this one is `self` in
  // the world.
  virtual MessagesUnderway exchange_messages(const PeerMessages& peer, std::int64_t self,
                                             std::int64_t other) const = 0;

 protected:
  const Group& group_;

 private:
  // Flat parts of one size.
  virtual void scatter_into(Tensors& received, std::vector<Tensors>& sent, int source) const = 0;
};

class PackedTransport : public Transport {
 public:
  using Transport::Transport;
  at::Tensor all_reduce(const at::Tensor& self, ReduceOp op) const override;
  Tensors all_reduce_coalesced(const Tensors& self, ReduceOp op) const override;
  at::Tensor all_gather(const at::Tensor& self, std::int64_t dim, const Splits& sizes) const override;
  Tensors all_gather_coalesced(const Tensors& self) const override;
  at::Tensor reduce_scatter(const at::Tensor& self, ReduceOp op, std::int64_t dim) const override;
  Tensors reduce_scatter_coalesced(const Tensors& self, ReduceOp op, const Splits& dims) const override;
  at::Tensor all_to_all(const at::Tensor& self, const Splits& to_receive, const Splits& to_send,
                        c10::IntArrayRef sizes) const override;
  at::Tensor broadcast(const at::Tensor& self, int source) const override;
  void barrier() const override;
  at::Tensor gather_boxes(const PreparedStep& step, const at::Tensor& local) const override;
  at::Tensor exchange_boxes(const PreparedStep& step, const at::Tensor& local) const override;
  at::Tensor reduce_boxes(const PreparedStep& step, const at::Tensor& local) const override;
  std::function<void()> start_gather_chunks(const Tensors& chunks, const Tensors& wholes,
                                            const Splits& dims) const override;
  std::function<Tensors()> start_reduce_chunks(const Tensors& terms, ReduceOp op,
                                               const Splits& dims) const override;
  std::function<Tensors()> start_reduce_wholes(const Tensors& terms, ReduceOp op) const override;
  MessagesUnderway exchange_messages(const PeerMessages& peer, std::int64_t self,
                                     std::int64_t other) const override;

 private:
  void scatter_into(Tensors& received, std::vector<Tensors>& sent, int source) const override;
};

class SharedMemoryTransport : public Transport {
 public:
  SharedMemoryTransport(const Group& group, MemoryBackend& memory) : Transport(group), memory_(memory) {}
  at::Tensor all_reduce(const at::Tensor& self, ReduceOp op) const override;
  Tensors all_reduce_coalesced(const Tensors& self, ReduceOp op) const override;
  at::Tensor all_gather(const at::Tensor& self, std::int64_t dim, const Splits& sizes) const override;
  Tensors all_gather_coalesced(const Tensors& self) const override;
  at::Tensor reduce_scatter(const at::Tensor& self, ReduceOp op, std::int64_t dim) const override;
  Tensors reduce_scatter_coalesced(const Tensors& self, ReduceOp op, const Splits& dims) const override;
  at::Tensor all_to_all(const at::Tensor& self, const Splits& to_receive, const Splits& to_send,
                        c10::IntArrayRef sizes) const override;
  at::Tensor broadcast(const at::Tensor& self, int source) const override;
  void barrier() const override;
  at::Tensor gather_boxes(const PreparedStep& step, const at::Tensor& local) const override;
  at::Tensor exchange_boxes(const PreparedStep& step, const at::Tensor& local) const override;
  at::Tensor reduce_boxes(const PreparedStep& step, const at::Tensor& local) const override;
  std::function<void()> start_gather_chunks(const Tensors& chunks, const Tensors& wholes,
                                            const Splits& dims) const override;
  std::function<Tensors()> start_reduce_chunks(const Tensors& terms, ReduceOp op,
                                               const Splits& dims) const override;
  std::function<Tensors()> start_reduce_wholes(const Tensors& terms, ReduceOp op) const override;
  MessagesUnderway exchange_messages(const PeerMessages& peer, std::int64_t self,
                                     std::int64_t other) const override;

 private:
  void scatter_into(Tensors& received, std::vector<Tensors>& sent, int source) const override;
  MemoryBackend& memory_;
};

// The way on which tensors like `like` move in a group. Throws if this rank is not a member.
class TransportOf {
 public:
  TransportOf(const Group& group, const at::Tensor& like);
  explicit TransportOf(const Group& group, c10::Device device = at::kCPU);
  const Transport* operator->() const {
    return std::visit([](const auto& way) -> const Transport* { return &way; }, way_);
  }

 private:
  std::variant<PackedTransport, SharedMemoryTransport> way_;
};

// The size of every rank's tensor along `dim`, of which this rank has `self`. Throws unless `sizes` are such,
// or none.
Splits gather_sizes(const at::Tensor& self, std::int64_t dim, const Group& group, const Splits& sizes);

}  // namespace meshtorch::internal

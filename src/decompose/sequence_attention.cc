// Attention whose queries are split along the sequence: three ways for keys and values to reach them.
#include "decompose/sequence_attention.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include <algorithm>
#include <optional>

#include "collectives/peer_exchange.h"
#include "decompose/blockwise_attention.h"
#include "decompose/sequence_split.h"
#include "meshtorch/collectives.h"
#include "meshtorch/context_parallel.h"
#include "tensor/execute.h"
#include "tensor/from_local.h"
#include "tensor/meta.h"

namespace meshtorch::internal {
namespace {

constexpr std::int64_t kRowDim = 2, kVectorDim = 3;

using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using OutAndLogsumexp = std::tuple<at::Tensor, at::Tensor>;

at::Tensor arrived_as(const at::Tensor& tensor, const Layout& layout) {
  return wait_tensor(local_as(tensor, layout));
}

at::Tensor distributed_as(const at::Tensor& local, const Layout* layout, c10::IntArrayRef sizes) {
  return wrap(local, layout, sizes, dense_strides(sizes));
}

Shape out_sizes(const AttentionCall& call) {
  Shape sizes = call.query.sizes().vec();
  sizes.back() = call.value.size(kVectorDim);
  return sizes;
}

Shape logsumexp_sizes(const AttentionCall& call) { return call.query.sizes().slice(0, 3).vec(); }

// Keys and values travel as one tensor.
struct KeyValueBlock {
  at::Tensor both;
  std::int64_t key_size;

  at::Tensor key() const { return both.narrow(kVectorDim, 0, key_size); }
  at::Tensor value() const { return both.narrow(kVectorDim, key_size, both.size(kVectorDim) - key_size); }
};

// One call on this rank.
class SequenceAttention {
 public:
  SequenceAttention(const AttentionCall& call, SequenceSplit split) : call_(call), split_(std::move(split)) {}

  OutAndLogsumexp forward() const {
    if (!split_.mesh->coordinate()) return stand_ins();
    const bool by_heads = rotation() == RotateMethod::ulysses;
    auto [out, logsumexp] = by_heads ? forward_by_heads() : forward_by_rows();
    return {distributed_as(out, split_.query, out_sizes(call_)),
            distributed_as(logsumexp, split_.query, logsumexp_sizes(call_))};
  }

  Gradients backward(const at::Tensor& out_gradient, const at::Tensor& out,
                     const at::Tensor& logsumexp) const {
    Gradients local;
    if (!split_.mesh->coordinate()) {
      local = {zeros_of(call_.query, *split_.query), zeros_of(call_.key, *split_.key),
               zeros_of(call_.value, *split_.key)};
    } else if (rotation() == RotateMethod::ulysses) {
      local = backward_by_heads(out_gradient, out, logsumexp);
    } else {
      local = backward_by_rows(out_gradient, out, logsumexp);
    }
    const auto& [dq, dk, dv] = local;
    const Layout* key = key_gradient_layout();
    return {distributed_as(dq, split_.query, call_.query.sizes()), distributed_as(dk, key, call_.key.sizes()),
            distributed_as(dv, key, call_.value.sizes())};
  }

 private:
  at::Tensor zeros_of(const at::Tensor& tensor, const Layout& layout) const {
    return at::zeros(local_shape_of(tensor.sizes(), layout), tensor.options().requires_grad(false));
  }

  OutAndLogsumexp stand_ins() const {
    const at::TensorOptions options = meta_of(call_.query)->local.options();
    const Shape out = out_sizes(call_);
    const Shape rows = logsumexp_sizes(call_);
    return {distributed_as(at::zeros(local_shape_of(out, *split_.query), options), split_.query, out),
            distributed_as(at::zeros(local_shape_of(rows, *split_.query),
                                     options.dtype(at::toOpMathType(call_.query.scalar_type()))),
                           split_.query, rows)};
  }

  // Where all keys were on this rank, their gradients are sums over the ranks that have other queries.
  const Layout* key_gradient_layout() const {
    Placements placements = split_.key->placements;
    for (std::size_t axis = 0; axis < placements.size(); ++axis) {
      const bool splits_queries_only =
          split_.query->placements[axis].is_shard(kRowDim) && !placements[axis].is_shard();
      if (splits_queries_only) placements[axis] = Partial();
    }
    return split_.mesh->layout(placements);
  }

  RotateMethod rotation() const {
    const RotateMethod wanted = get_rotate_method();
    if (split_.key_axes.empty()) return RotateMethod::allgather;  // there is nothing to gather
    const bool can_split_heads = split_.query_by_heads != nullptr;
    if (wanted == RotateMethod::ulysses) {
      TORCH_CHECK_VALUE(
          can_split_heads,
          "meshtorch: attention by ulysses needs key heads that the mesh axes divide\n  heads of "
          "queries: ",
          call_.query.size(1), ", of keys: ", call_.key.size(1),
          ", layout: ", to_string(split_.query->placements), " on a mesh of shape ",
          c10::IntArrayRef(split_.mesh->shape()),
          "\n  do: choose another way, as set_rotate_method(\"allgather\")");
    }
    if (wanted != RotateMethod::automatic) return wanted;
    return can_split_heads && seconds_by_heads() < seconds_gathered() ? RotateMethod::ulysses
                                                                      : RotateMethod::allgather;
  }

  double seconds(std::int64_t collectives, double elements) const {
    const AxisCost cost = split_.mesh->axis_costs()[static_cast<std::size_t>(split_.key_axes[0])];
    return static_cast<double>(collectives) * cost.latency_s +
           elements * static_cast<double>(call_.query.element_size()) * cost.seconds_per_byte;
  }
  double elements_in(const at::Tensor& tensor, const Layout& layout) const {
    return static_cast<double>(
        c10::multiply_integers(local_shape(tensor.sizes().vec(), layout.placements, split_.mesh->shape(),
                                           Shape(split_.mesh->shape().size(), 0))));
  }
  double seconds_gathered() const {
    const auto others = static_cast<double>(split_.key_rows.size() - 1);
    return seconds(1, others * (elements_in(call_.key, *split_.key) + elements_in(call_.value, *split_.key)));
  }
  double seconds_by_heads() const {
    const auto n = static_cast<double>(split_.key_rows.size());
    return seconds(5, (n - 1) / n *
                          (2 * elements_in(call_.query, *split_.query) + elements_in(call_.key, *split_.key) +
                           elements_in(call_.value, *split_.key)));
  }

  AttentionTerms terms_in(const Layout& layout) const {
    AttentionTerms terms{arrived_as(call_.query, layout), {}, call_.scale};
    if (call_.mask && call_.mask->defined())
      terms.mask = arrived_as(*call_.mask, *mask_layout(*call_.mask, layout));
    return terms;
  }

  KeyValueBlock own_block() const {
    return {at::cat({arrived_as(call_.key, *split_.key), arrived_as(call_.value, *split_.key)}, kVectorDim),
            call_.key.size(kVectorDim)};
  }

  std::vector<AttentionTile> tiles_with(const std::vector<Range>& keys) const {
    return attention_tiles(split_.query_rows, keys, call_.is_causal);
  }

  Group key_group() const { return split_.mesh->group(split_.key_axes); }

  // The block of every rank in turn, this one's first: fn(member, block). Each is passed on while it is used.
  template <class Fn>
  void turn_ring(const Fn& fn) const {
    const std::size_t n = split_.key_rows.size();
    const std::vector<std::int64_t> sizes = split_.key_sizes();
    KeyValueBlock block = own_block();
    for (std::size_t step = 0; step < n; ++step) {
      const std::size_t member = (split_.self() + n - step) % n;
      const bool is_last = step + 1 == n;
      std::optional<SentAndReceived> next;
      if (!is_last) next = passed_on(block.both, sizes[(member + n - 1) % n]);
      fn(member, block);
      if (!is_last) block.both = arrived(*next);
    }
  }

  // Gives `tensor` to the neighbour after, and gets what the one before passes on: as many rows as are named.
  // Nobody waits for a neighbour that still computes before the result is used.
  SentAndReceived passed_on(const at::Tensor& tensor, std::int64_t rows) const {
    const Group group = key_group();
    const int n = group.size();
    Shape expected = tensor.sizes().vec();
    expected[static_cast<std::size_t>(kRowDim)] = rows;
    return exchange_with_peers({{tensor, (group.rank() + 1) % n}},
                               {{expected, tensor.options(), (group.rank() + n - 1) % n}}, group,
                               Meet::when_used);
  }
  static at::Tensor arrived(const SentAndReceived& passed) {
    wait_tensor(passed.sent);
    return wait_tensor(passed.received[0]);
  }

  // All keys and values, in the order of the ranks.
  KeyValueBlock gathered_block() const {
    KeyValueBlock block = own_block();
    if (!split_.key_axes.empty())
      block.both = wait_tensor(all_gather_tensor(block.both, kRowDim, key_group(), split_.key_sizes()));
    return block;
  }

  std::vector<Range> all_key_rows() const {
    std::vector<Range> all;
    for (const std::vector<Range>& rows : split_.key_rows) all.insert(all.end(), rows.begin(), rows.end());
    return all;
  }

  OutAndLogsumexp forward_by_rows() const {
    BlockwiseAttention attention(terms_in(*split_.query), call_.value.size(kVectorDim));
    if (rotation() == RotateMethod::ring) {
      turn_ring([&](std::size_t member, const KeyValueBlock& block) {
        attention.add(block.key(), block.value(), tiles_with(split_.key_rows[member]));
      });
    } else {
      const KeyValueBlock block = gathered_block();
      attention.add(block.key(), block.value(), tiles_with(joined(all_key_rows())));
    }
    return attention.result();
  }

  // Runs that follow one another as one.
  static std::vector<Range> joined(const std::vector<Range>& runs) {
    std::vector<Range> found;
    for (const Range& run : runs) {
      if (!found.empty() && found.back().end() == run.begin) {
        found.back().size += run.size;
      } else if (run.size > 0) {
        found.push_back(run);
      }
    }
    return found;
  }

  Gradients backward_by_rows(const at::Tensor& out_gradient, const at::Tensor& out,
                             const at::Tensor& logsumexp) const {
    BlockwiseAttentionBackward attention(terms_in(*split_.query), arrived_as(out_gradient, *split_.query),
                                         arrived_as(out, *split_.query),
                                         arrived_as(logsumexp, *split_.query));
    const at::Tensor both =
        rotation() == RotateMethod::ring ? ring_gradients(attention) : gathered_gradients(attention);
    const KeyValueBlock gradients{both.to(call_.key.scalar_type()), call_.key.size(kVectorDim)};
    return {attention.query_gradient(), gradients.key().contiguous(), gradients.value().contiguous()};
  }

  // The gradients of a block follow it around, one step behind, and come home at the end.
  at::Tensor ring_gradients(BlockwiseAttentionBackward& attention) const {
    const std::size_t n = split_.key_rows.size();
    const std::vector<std::int64_t> sizes = split_.key_sizes();
    std::optional<SentAndReceived> travelling;
    turn_ring([&](std::size_t member, const KeyValueBlock& block) {
      const auto [dk, dv] = attention.add(block.key(), block.value(), tiles_with(split_.key_rows[member]));
      const at::Tensor own = at::cat({dk, dv}, kVectorDim);
      const at::Tensor sum = travelling ? arrived(*travelling) + own : own;
      travelling = passed_on(sum, sizes[(member + n - 1) % n]);
    });
    return arrived(*travelling);
  }

  at::Tensor gathered_gradients(BlockwiseAttentionBackward& attention) const {
    const KeyValueBlock block = gathered_block();
    const auto [dk, dv] = attention.add(block.key(), block.value(), tiles_with(joined(all_key_rows())));
    const at::Tensor all = at::cat({dk, dv}, kVectorDim).to(call_.key.scalar_type());
    if (split_.key_axes.empty()) return all;
    const std::vector<std::int64_t> sizes = split_.key_sizes();
    const std::int64_t largest = *std::max_element(sizes.begin(), sizes.end());
    std::vector<at::Tensor> parts = all.split_with_sizes(sizes, kRowDim);
    for (at::Tensor& part : parts) part = at::constant_pad_nd(part, {0, 0, 0, largest - part.size(kRowDim)});
    return reduce_scatter_tensor(at::cat(parts, kRowDim), ReduceOp::sum, kRowDim, key_group())
        .narrow(kRowDim, 0, sizes[split_.self()]);
  }

  // Between all queries and all keys.
  std::vector<AttentionTile> all_tiles() const {
    const auto all = [&](std::int64_t size) { return split_.order.positions({{0, size}}, size); };
    return attention_tiles(all(call_.query.size(kRowDim)), all(call_.key.size(kRowDim)), call_.is_causal);
  }

  OutAndLogsumexp forward_by_heads() const {
    const AttentionTerms terms = terms_in(*split_.query_by_heads);
    BlockwiseAttention attention(terms, call_.value.size(kVectorDim));
    attention.add(arrived_as(call_.key, *split_.key_by_heads), arrived_as(call_.value, *split_.key_by_heads),
                  all_tiles());
    const auto [out, logsumexp] = attention.result();
    return {back_to_rows(out, out_sizes(call_), *split_.query_by_heads, *split_.query),
            back_to_rows(logsumexp, logsumexp_sizes(call_), *split_.query_by_heads, *split_.query)};
  }

  Gradients backward_by_heads(const at::Tensor& out_gradient, const at::Tensor& out,
                              const at::Tensor& logsumexp) const {
    const Layout& by_heads = *split_.query_by_heads;
    const AttentionTerms terms = terms_in(by_heads);
    BlockwiseAttentionBackward attention(terms, arrived_as(out_gradient, by_heads), arrived_as(out, by_heads),
                                         arrived_as(logsumexp, by_heads));
    const auto [dk, dv] = attention.add(arrived_as(call_.key, *split_.key_by_heads),
                                        arrived_as(call_.value, *split_.key_by_heads), all_tiles());
    return {
        back_to_rows(attention.query_gradient(), call_.query.sizes(), by_heads, *split_.query),
        back_to_rows(dk.to(call_.key.scalar_type()), call_.key.sizes(), *split_.key_by_heads, *split_.key),
        back_to_rows(dv.to(call_.value.scalar_type()), call_.value.sizes(), *split_.key_by_heads,
                     *split_.key)};
  }

  static at::Tensor back_to_rows(const at::Tensor& local, c10::IntArrayRef sizes, const Layout& from,
                                 const Layout& to) {
    return wait_tensor(redistribute_local(local, sizes.vec(), from, to));
  }

  const AttentionCall& call_;
  const SequenceSplit split_;
};

}  // namespace

std::optional<OutAndLogsumexp> sequence_attention(const AttentionCall& call) {
  auto split = sequence_split_of(call);
  if (!split) return std::nullopt;
  return SequenceAttention(call, std::move(*split)).forward();
}

std::optional<Gradients> sequence_attention_backward(const AttentionCall& call,
                                                     const at::Tensor& out_gradient, const at::Tensor& out,
                                                     const at::Tensor& logsumexp) {
  auto split = sequence_split_of(call);
  if (!split) return std::nullopt;
  return SequenceAttention(call, std::move(*split)).backward(out_gradient, out, logsumexp);
}

}  // namespace meshtorch::internal

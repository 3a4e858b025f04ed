// Collectives of thread ranks: each reads its peers' inputs in place and writes its own outputs.
#include "comm/threads_backend.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "comm/completed_work.h"
#include "comm/reduce.h"
#include "core/shard.h"

namespace meshtorch {
namespace {

constexpr int64_t kSmallNumel = 1 << 14;

std::string describe(const at::Tensor& t) { return c10::str(c10::toString(t.scalar_type()), t.sizes()); }

std::string describe(const std::vector<at::Tensor>& tensors) {
  std::string text;
  for (const at::Tensor& t : tensors) text.append(text.empty() ? "" : ", ").append(describe(t));
  return text;
}

at::Tensor flat(const at::Tensor& t) { return t.contiguous().view({-1}); }

at::Tensor part(const at::Tensor& flat_tensor, Range range) {
  return flat_tensor.narrow(0, range.begin, range.size);
}

const at::Tensor& only(const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK(tensors.size() == 1, "meshtorch: the threads backend takes one tensor per rank, not ",
              tensors.size());
  return tensors[0];
}

std::vector<int64_t> exclusive_sums(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> offsets{0};
  for (const int64_t size : sizes) offsets.push_back(offsets.back() + size);
  return offsets;
}

}  // namespace

ThreadsBackend::ThreadsBackend(std::shared_ptr<ThreadWorld> world, std::shared_ptr<ThreadMeeting> meeting,
                               int rank, std::chrono::milliseconds timeout)
    : Backend(rank, meeting->size()),
      world_(std::move(world)),
      meeting_(std::move(meeting)),
      timeout_(timeout) {}

ThreadsBackend::WorkPtr ThreadsBackend::meet(const char* name, const std::string& signature,
                                             Arguments arguments,
                                             const std::function<void(const Peers&)>& body) {
  return meet(name, signature, std::move(arguments), body, nullptr);
}

ThreadsBackend::WorkPtr ThreadsBackend::meet(const char* name, const std::string& signature,
                                             Arguments arguments,
                                             const std::function<void(const Peers&)>& body,
                                             const std::function<void(const Peers&)>& after_all) {
  const at::NoGradGuard no_grad;
  Tensors results = arguments.inputs;
  const ThreadCall call{name, c10::str(name, "(", signature, ")"), &arguments};
  const auto& calls = meeting_->enter(rank_, call, timeout_);
  const Peers peers = [&](int r) -> const Arguments& {
    return *static_cast<const Arguments*>(calls[static_cast<std::size_t>(r)]->arguments);
  };
  // A rank that cannot do its part still meets the others, so that all learn of it and none waits.
  const auto failure_of = [&](const std::function<void(const Peers&)>& step) -> std::string {
    try {
      step(peers);
      return {};
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    } catch (const std::exception& error) {
      return error.what();
    }
  };
  meeting_->sync(rank_, failure_of(body));
  if (after_all) meeting_->sync(rank_, failure_of(after_all));
  return completed_work(rank_, std::move(results));
}

ThreadsBackend::WorkPtr ThreadsBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  const at::Tensor& tensor = only(tensors);
  const int root = static_cast<int>(opts.rootRank);
  return meet("broadcast", c10::str(describe(tensor), ", root ", root), {{tensor}, {}},
              [&](const Peers& peers) {
                if (rank_ != root) tensor.copy_(peers(root).inputs[0]);
              });
}

ThreadsBackend::WorkPtr ThreadsBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  const c10d::AllreduceCoalescedOptions coalesced{{opts}};
  return allreduce_coalesced(tensors, coalesced);
}

// In place. Of small tensors each rank reduces the whole by itself, which saves a meeting; of others it
// reduces one part of all inputs into its own tensor, and when all have, copies the other parts.
ThreadsBackend::WorkPtr ThreadsBackend::allreduce_coalesced(Tensors& tensors,
                                                            const c10d::AllreduceCoalescedOptions& opts) {
  const c10d::ReduceOp::RedOpType op = opts.reduceOp.op_;
  check_reducible(op, tensors);
  Tensors buffers;
  for (const at::Tensor& t : tensors) buffers.push_back(flat(t));
  const std::string signature = c10::str(describe(tensors), ", ", reduce_op_name(op));
  const auto is_small = [](const at::Tensor& t) { return t.numel() <= kSmallNumel; };
  if (std::all_of(tensors.begin(), tensors.end(), is_small)) {
    Tensors sums;
    auto work = meet("all_reduce", signature, {buffers, {}}, [&](const Peers& peers) {
      for (std::size_t i = 0; i < buffers.size(); ++i) {
        Tensors terms;
        for (int r = 0; r < size_; ++r) terms.push_back(peers(r).inputs[i]);
        sums.push_back(at::empty_like(buffers[i]));
        reduce_into(sums.back(), terms, op);
      }
    });
    // Nobody reads this rank's tensors any more.
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < sums.size(); ++i) tensors[i].copy_(sums[i].view(tensors[i].sizes()));
    return work;
  }
  const auto my_part = [&](const at::Tensor& t, int rank) { return part(t, chunk(t.numel(), size_, rank)); };
  return meet(
      "all_reduce", signature, {buffers, {}},
      [&](const Peers& peers) {
        for (std::size_t i = 0; i < buffers.size(); ++i) {
          Tensors terms;
          for (int r = 0; r < size_; ++r) terms.push_back(my_part(peers(r).inputs[i], rank_));
          reduce_into(my_part(buffers[i], rank_), terms, op);
        }
      },
      [&](const Peers& peers) {
        for (std::size_t i = 0; i < buffers.size(); ++i) {
          for (int r = 0; r < size_; ++r) {
            if (r != rank_) my_part(buffers[i], r).copy_(my_part(peers(r).inputs[i], r));
          }
          if (!tensors[i].is_contiguous()) tensors[i].copy_(buffers[i].view(tensors[i].sizes()));
        }
      });
}

ThreadsBackend::WorkPtr ThreadsBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  const at::Tensor& tensor = only(tensors);
  const c10d::ReduceOp::RedOpType op = opts.reduceOp.op_;
  check_reducible(op, tensors);
  const int root = static_cast<int>(opts.rootRank);
  return meet("reduce", c10::str(describe(tensor), ", ", reduce_op_name(op), ", root ", root), {{tensor}, {}},
              [&](const Peers& peers) {
                if (rank_ != root) return;
                Tensors terms;
                for (int r = 0; r < size_; ++r) terms.push_back(peers(r).inputs[0]);
                reduce_into(tensor, terms, op);
              });
}

ThreadsBackend::WorkPtr ThreadsBackend::allgather(TensorLists& outputs, Tensors& inputs,
                                                  const c10d::AllgatherOptions&) {
  const at::Tensor& input = only(inputs);
  // Lists may hold shards of different sizes: the list of the results, equal on all ranks, is the signature.
  return meet("all_gather", describe(outputs.at(0)), {{input}, {}}, [&](const Peers& peers) {
    for (int r = 0; r < size_; ++r) outputs[0][static_cast<std::size_t>(r)].copy_(peers(r).inputs[0]);
  });
}

ThreadsBackend::WorkPtr ThreadsBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                        const c10d::AllgatherOptions& opts) {
  Tensors outputs{output};
  Tensors inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, opts);
}

ThreadsBackend::WorkPtr ThreadsBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                        const c10d::AllgatherOptions&) {
  return meet("all_gather_into_tensor", describe(inputs), {inputs, {}}, [&](const Peers& peers) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      TORCH_CHECK_VALUE(outputs[i].is_contiguous() && outputs[i].numel() == inputs[i].numel() * size_,
                        "meshtorch: all_gather_into_tensor needs a contiguous output of ", size_,
                        " times the input's ", inputs[i].numel(), " elements, not ", outputs[i].sizes());
      const at::Tensor rows = outputs[i].view({size_, inputs[i].numel()});
      for (int r = 0; r < size_; ++r) rows[r].copy_(peers(r).inputs[i].reshape({-1}));
    }
  });
}

ThreadsBackend::WorkPtr ThreadsBackend::gather(TensorLists& outputs, Tensors& inputs,
                                               const c10d::GatherOptions& opts) {
  const at::Tensor& input = only(inputs);
  const int root = static_cast<int>(opts.rootRank);
  return meet("gather", c10::str("root ", root), {{input}, {}}, [&](const Peers& peers) {
    if (rank_ != root) return;
    for (int r = 0; r < size_; ++r) outputs.at(0)[static_cast<std::size_t>(r)].copy_(peers(r).inputs[0]);
  });
}

ThreadsBackend::WorkPtr ThreadsBackend::scatter(Tensors& outputs, TensorLists& inputs,
                                                const c10d::ScatterOptions& opts) {
  const at::Tensor& output = only(outputs);
  const int root = static_cast<int>(opts.rootRank);
  Arguments arguments;
  if (rank_ == root) arguments.inputs = inputs.at(0);
  return meet("scatter", c10::str("root ", root), std::move(arguments), [&](const Peers& peers) {
    output.copy_(peers(root).inputs.at(static_cast<std::size_t>(rank_)));
  });
}

ThreadsBackend::WorkPtr ThreadsBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                                       const c10d::ReduceScatterOptions& opts) {
  const at::Tensor& output = only(outputs);
  const c10d::ReduceOp::RedOpType op = opts.reduceOp.op_;
  check_reducible(op, inputs.at(0));
  return meet("reduce_scatter", c10::str(describe(inputs[0]), ", ", reduce_op_name(op)), {inputs[0], {}},
              [&](const Peers& peers) {
                Tensors terms;
                for (int r = 0; r < size_; ++r)
                  terms.push_back(peers(r).inputs[static_cast<std::size_t>(rank_)]);
                reduce_into(output, terms, op);
              });
}

ThreadsBackend::WorkPtr ThreadsBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                             const c10d::ReduceScatterOptions& opts) {
  Tensors outputs{output};
  Tensors inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, opts);
}

ThreadsBackend::WorkPtr ThreadsBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  const c10d::ReduceOp::RedOpType op = opts.reduceOp.op_;
  check_reducible(op, inputs);
  Tensors buffers;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    TORCH_CHECK_VALUE(inputs[i].numel() == outputs[i].numel() * size_,
                      "meshtorch: reduce_scatter_tensor needs ", size_, " times the output's ",
                      outputs[i].numel(), " elements, not ", inputs[i].sizes());
    buffers.push_back(flat(inputs[i]));
  }
  return meet("reduce_scatter_tensor", c10::str(describe(inputs), ", ", reduce_op_name(op)), {buffers, {}},
              [&](const Peers& peers) {
                for (std::size_t i = 0; i < buffers.size(); ++i) {
                  Tensors terms;
                  const Range mine{outputs[i].numel() * rank_, outputs[i].numel()};
                  for (int r = 0; r < size_; ++r)
                    terms.push_back(part(peers(r).inputs[i], mine).view(outputs[i].sizes()));
                  reduce_into(outputs[i], terms, op);
                }
              });
}

ThreadsBackend::WorkPtr ThreadsBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                      std::vector<int64_t>& output_splits,
                                                      std::vector<int64_t>& input_splits,
                                                      const c10d::AllToAllOptions&) {
  const auto even = [&](const at::Tensor& t) {
    TORCH_CHECK_VALUE(t.dim() > 0 && t.size(0) % size_ == 0,
                      "meshtorch: all_to_all_single without split sizes needs dim 0 to be a multiple of ",
                      size_, ", not ", t.sizes());
    return std::vector<int64_t>(static_cast<std::size_t>(size_), t.size(0) / size_);
  };
  if (output_splits.empty()) output_splits = even(output);
  if (input_splits.empty()) input_splits = even(input);
  const std::vector<int64_t> offsets = exclusive_sums(output_splits);
  return meet("all_to_all_single", c10::str(c10::toString(input.scalar_type())), {{input}, input_splits},
              [&](const Peers& peers) {
                for (int r = 0; r < size_; ++r) {
                  const auto slot = static_cast<std::size_t>(r);
                  const Arguments& peer = peers(r);
                  const int64_t sent = peer.splits[static_cast<std::size_t>(rank_)];
                  TORCH_CHECK_VALUE(sent == output_splits[slot], "meshtorch: all_to_all_single: rank ", r,
                                    " sends ", sent, " rows to rank ", rank_, ", which expects ",
                                    output_splits[slot]);
                  const int64_t from = exclusive_sums(peer.splits)[static_cast<std::size_t>(rank_)];
                  output.narrow(0, offsets[slot], sent).copy_(peer.inputs[0].narrow(0, from, sent));
                }
              });
}

ThreadsBackend::WorkPtr ThreadsBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                                 const c10d::AllToAllOptions&) {
  return meet("all_to_all", "", {inputs, {}}, [&](const Peers& peers) {
    for (int r = 0; r < size_; ++r) {
      outputs[static_cast<std::size_t>(r)].copy_(peers(r).inputs.at(static_cast<std::size_t>(rank_)));
    }
  });
}

ThreadsBackend::WorkPtr ThreadsBackend::barrier(const c10d::BarrierOptions&) {
  return meet("barrier", "", {}, [](const Peers&) {});
}

}  // namespace meshtorch

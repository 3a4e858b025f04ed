// context_parallel: buffers are split along the sequence for a while.
#include "meshtorch/context_parallel.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>

#include "decompose/sequence_order.h"
#include "meshtorch/distribute_module.h"
#include "meshtorch/implicit_replication.h"

namespace meshtorch {
namespace {

SequenceOrder order_for(const DeviceMesh& mesh, bool load_balance) {
  return {load_balance && mesh.size() > 1 ? 2 * mesh.size() : 0};
}

std::int64_t sequence_dim(const at::Tensor& tensor, std::int64_t dim) {
  TORCH_CHECK_VALUE(dim >= -tensor.dim() && dim < tensor.dim(), "meshtorch: a buffer of shape ",
                    tensor.sizes(), " has no dim ", dim,
                    "\n  in: buffer_seq_dims of context_parallel\n  do: give a dim from ", -tensor.dim(),
                    " to ", tensor.dim() - 1);
  return dim < 0 ? dim + tensor.dim() : dim;
}

void check_lists(const DeviceMesh& mesh, std::size_t buffers, std::size_t dims, const char* where) {
  TORCH_CHECK_VALUE(mesh.ndim() == 1, "meshtorch: ", where, " needs a mesh of one axis, not ",
                    mesh.to_string(), "\n  do: give one axis of it, as mesh[\"cp\"]");
  TORCH_CHECK_VALUE(buffers == dims, "meshtorch: ", where, " got ", buffers, " buffers and ", dims,
                    " sequence dims\n  do: give one dim for each buffer");
}

at::Tensor index_tensor(const std::vector<std::int64_t>& numbers) { return at::tensor(numbers, at::kLong); }

}  // namespace

struct ContextParallelState {
  struct Buffer {
    at::Tensor tensor;
    at::Tensor original;  // undefined if it need not come back
  };
  std::vector<Buffer> buffers{};
  std::optional<OrderScope> order{};
  std::optional<implicit_replication> replication{};
};

context_parallel::context_parallel(const DeviceMesh& mesh, const std::vector<at::Tensor>& buffers,
                                   const std::vector<std::int64_t>& buffer_seq_dims,
                                   const ContextParallelOptions& options)
    : state_(std::make_unique<ContextParallelState>()) {
  check_lists(mesh, buffers.size(), buffer_seq_dims.size(), "context_parallel");
  const SequenceOrder order = order_for(mesh, options.load_balance);
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> split;  // all are made before the first buffer changes
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    TORCH_CHECK_VALUE(
        !is_dtensor(buffers[i]) && !buffers[i].requires_grad(),
        "meshtorch: context_parallel splits plain tensors that require no gradients, and buffer ", i,
        is_dtensor(buffers[i]) ? " is distributed" : " requires gradients",
        "\n  do: give the inputs of the model, not its parameters");
    const std::int64_t dim = sequence_dim(buffers[i], buffer_seq_dims[i]);
    const at::Tensor ordered =
        order.is_natural()
            ? buffers[i]
            : buffers[i].index_select(dim, index_tensor(order.permutation(buffers[i].size(dim))));
    split.push_back(distribute_tensor(ordered, mesh, {Shard(dim)}, {.src_data_rank = std::nullopt}));
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const bool comes_back = std::ranges::none_of(options.no_restore_buffers,
                                                 [&](const at::Tensor& t) { return t.is_same(buffers[i]); });
    state_->buffers.push_back({buffers[i], comes_back ? buffers[i].detach() : at::Tensor()});
    replace_data(buffers[i], split[i]);
  }
  state_->order.emplace(order);
  state_->replication.emplace();
}

context_parallel::~context_parallel() {
  for (const ContextParallelState::Buffer& buffer : state_->buffers) {
    if (buffer.original.defined()) replace_data(buffer.tensor, buffer.original);
  }
}

std::vector<at::Tensor> context_parallel_unshard(const DeviceMesh& mesh,
                                                 const std::vector<at::Tensor>& tensors,
                                                 const std::vector<std::int64_t>& seq_dims,
                                                 bool load_balance) {
  check_lists(mesh, tensors.size(), seq_dims.size(), "context_parallel_unshard");
  const SequenceOrder order = order_for(mesh, load_balance);
  std::vector<at::Tensor> whole;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::int64_t dim = sequence_dim(tensors[i], seq_dims[i]);
    const DTensor split =
        is_dtensor(tensors[i]) ? DTensor(tensors[i]) : DTensor::from_local(tensors[i], mesh, {Shard(dim)});
    at::Tensor gathered = split.full_tensor();
    if (!order.is_natural() && gathered.dim() == split.dim()) {
      const at::Tensor inverse = index_tensor(order.permutation(gathered.size(dim))).argsort();
      gathered = gathered.index_select(dim, inverse);
    }
    whole.push_back(std::move(gathered));
  }
  return whole;
}

}  // namespace meshtorch

// context_parallel: buffers are split along the sequence for a while.
#include "meshtorch/context_parallel.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <optional>

#include "decompose/sequence_order.h"
#include "meshtorch/distribute_module.h"
#include "meshtorch/implicit_replication.h"
#include "runtime/host_tensor.h"

namespace meshtorch {
using namespace internal;
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

// The sequence in this order.
at::Tensor ordered(const at::Tensor& buffer, std::int64_t dim, const SequenceOrder& order) {
  if (order.is_natural()) return buffer;
  std::vector<at::Tensor> pieces;
  for (const Range& run : order.positions({{0, buffer.size(dim)}}, buffer.size(dim)))
    pieces.push_back(buffer.narrow(dim, run.begin, run.size));
  return at::cat(pieces, dim);
}

// The number of the axis `mesh` in the mesh of a distributed buffer, which lies whole along it and along its
// sequence.
std::size_t axis_to_split(const DTensor& buffer, std::int64_t dim, const DeviceMesh& mesh) {
  const DeviceMesh whole = buffer.device_mesh();
  const DeviceMesh::Names& names = whole.names();
  const auto found = mesh.names().empty() ? names.end() : std::ranges::find(names, mesh.names().front());
  TORCH_CHECK_VALUE(found != names.end() && whole[*found] == mesh,
                    "meshtorch: context_parallel got a distributed buffer whose mesh has no such axis\n  "
                    "buffer: ",
                    whole.to_string(), "\n  axis: ", mesh.to_string(),
                    "\n  do: give one axis of the buffer's mesh, as mesh[\"cp\"]");
  const auto axis = static_cast<std::size_t>(found - names.begin());
  const Placements& placements = buffer.placements();
  const bool has_whole_sequence =
      std::ranges::none_of(placements, [&](const Placement& p) { return p.is_shard(dim) || p.is_partial(); });
  TORCH_CHECK_VALUE(
      placements[axis].is_replicate() && has_whole_sequence,
      "meshtorch: context_parallel splits buffers that are whole along the sequence, and one is "
      "distributed as ",
      to_string(placements), "\n  sequence dim: ", dim, ", axis: \"", *found,
      "\"\n  do: distribute it with Replicate() on that axis, and split other dims only");
  return axis;
}

at::Tensor split_along(const DeviceMesh& mesh, const at::Tensor& whole, std::int64_t dim) {
  if (!is_dtensor(whole))
    return distribute_tensor(whole, mesh, {Shard(dim)}, {.src_data_rank = std::nullopt});
  const DTensor given(whole);
  Placements placements = given.placements();
  placements[axis_to_split(given, dim, mesh)] = Shard(dim);
  return given.redistribute(placements);
}

// A graph that was made with the data before would compute other gradients with the data after: autograd
// refuses it.
void exchange_data(const at::Tensor& buffer, const at::Tensor& data) {
  replace_data(buffer, data);
  if (!buffer.is_inference()) buffer.unsafeGetTensorImpl()->bump_version();
}

void check_lists(const DeviceMesh& mesh, std::size_t buffers, std::size_t dims, const char* where) {
  TORCH_CHECK_VALUE(mesh.ndim() == 1, "meshtorch: ", where, " needs a mesh of one axis, not ",
                    mesh.to_string(), "\n  do: give one axis of it, as mesh[\"cp\"]");
  TORCH_CHECK_VALUE(buffers == dims, "meshtorch: ", where, " got ", buffers, " buffers and ", dims,
                    " sequence dims\n  do: give one dim for each buffer");
}

at::Tensor index_tensor(const std::vector<std::int64_t>& numbers) {
  return at::tensor(numbers, on_host(at::kLong));
}

}  // namespace

struct internal::ContextParallelState {
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
    TORCH_CHECK_VALUE(!buffers[i].requires_grad(),
                      "meshtorch: context_parallel splits tensors that require no gradients, and buffer ", i,
                      " requires gradients\n  do: give the inputs of the model, not its parameters");
    const auto before =
        std::ranges::find_if(buffers, [&](const at::Tensor& t) { return t.is_same(buffers[i]); });
    TORCH_CHECK_VALUE(before - buffers.begin() == static_cast<std::ptrdiff_t>(i),
                      "meshtorch: context_parallel got the same tensor as buffers ", before - buffers.begin(),
                      " and ", i, "\n  do: give each buffer once");
    const std::int64_t dim = sequence_dim(buffers[i], buffer_seq_dims[i]);
    if (is_dtensor(buffers[i])) axis_to_split(buffers[i], dim, mesh);
    split.push_back(split_along(mesh, ordered(buffers[i], dim, order), dim));
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const bool comes_back = std::ranges::none_of(options.no_restore_buffers,
                                                 [&](const at::Tensor& t) { return t.is_same(buffers[i]); });
    state_->buffers.push_back({buffers[i], comes_back ? buffers[i].detach() : at::Tensor()});
    exchange_data(buffers[i], split[i]);
  }
  state_->order.emplace(order);
  state_->replication.emplace();
}

context_parallel::~context_parallel() {
  for (const ContextParallelState::Buffer& buffer : state_->buffers) {
    if (buffer.original.defined()) exchange_data(buffer.tensor, buffer.original);
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

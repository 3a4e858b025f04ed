// Send and recv with gradients: the backward of an exchange is the exchange the other way round.
#include "meshtorch/point_to_point.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "collectives/peer_exchange.h"
#include "runtime/differentiable.h"
#include "runtime/host_tensor.h"

namespace meshtorch {
using namespace internal;
namespace {

// What backward has to know of a tensor that was sent or received.
struct Trip {
  std::vector<std::int64_t> sizes;
  at::TensorOptions options;
  int peer;
  int tag;
};

// Which of the tensors carry gradients, by position.
struct Trips {
  std::vector<std::pair<std::size_t, Trip>> sent;
  std::vector<std::pair<std::size_t, Trip>> received;
};

Trips with_gradients(const std::vector<SendTo>& sends, const std::vector<ReceiveFrom>& receives) {
  Trips trips;
  for (std::size_t i = 0; i < sends.size(); ++i) {
    const at::Tensor& t = sends[i].tensor;
    if (t.requires_grad())
      trips.sent.push_back(
          {i, {t.sizes().vec(), t.options().requires_grad(false), sends[i].to, sends[i].tag}});
  }
  for (std::size_t i = 0; i < receives.size(); ++i) {
    const ReceiveFrom& r = receives[i];
    if (r.options.requires_grad())
      trips.received.push_back({i, {r.sizes, r.options.requires_grad(false), r.from, r.tag}});
  }
  return trips;
}

// The gradients of what was received go back, and those of what was sent come.
std::vector<at::Tensor> backward_of(const Trips& trips, const std::vector<at::Tensor>& gradients,
                                    std::size_t inputs, const Group& group) {
  TORCH_CHECK_NOT_IMPLEMENTED(!at::GradMode::is_enabled(),
                              "meshtorch: send and recv have no second derivative\n  do: call backward "
                              "without create_graph");
  std::vector<SendTo> sends;
  std::vector<ReceiveFrom> receives;
  for (const auto& [position, trip] : trips.received) {
    const at::Tensor& g = gradients[position];
    sends.push_back({g.defined() ? g : at::zeros(trip.sizes, trip.options), trip.peer, trip.tag});
  }
  for (const auto& [position, trip] : trips.sent)
    receives.push_back({trip.sizes, trip.options, trip.peer, trip.tag});
  const SentAndReceived back = exchange_with_peers(sends, receives, group);
  std::vector<at::Tensor> result(inputs);
  for (std::size_t i = 0; i < trips.sent.size(); ++i) result[trips.sent[i].first] = back.received[i];
  return result;
}

}  // namespace

SentAndReceived batch_send_recv(const std::vector<SendTo>& sends, const std::vector<ReceiveFrom>& receives,
                                const Group& group) {
  const bool differentiates = at::GradMode::is_enabled();
  std::vector<SendTo> given = sends;
  std::vector<ReceiveFrom> expected = receives;
  if (!differentiates) {
    for (SendTo& s : given) s.tensor = s.tensor.detach();
    for (ReceiveFrom& r : expected) r.options = r.options.requires_grad(false);
  }
  const Trips trips = with_gradients(given, expected);
  if (trips.sent.empty() && trips.received.empty()) return exchange_with_peers(given, expected, group);
  std::vector<at::Tensor> inputs;
  for (const SendTo& s : given) inputs.push_back(s.tensor);
  // What is received depends on no input of this rank's.
  inputs.push_back(at::zeros({}, on_host(at::kFloat)).requires_grad_(!trips.received.empty()));
  const auto forward = [&](const std::vector<at::Tensor>&) {
    SentAndReceived there = exchange_with_peers(given, expected, group);
    std::vector<at::Tensor> outputs = std::move(there.received);
    outputs.push_back(std::move(there.sent));
    return outputs;
  };
  const auto backward = [trips, group, count = inputs.size()](const std::vector<at::Tensor>& gradients) {
    return backward_of(trips, gradients, count, group);
  };
  std::vector<at::Tensor> outputs = differentiable("SendRecvBackward", inputs, forward, backward);
  SentAndReceived results;
  results.sent = outputs.back();
  outputs.pop_back();
  for (std::size_t i = 0; i < outputs.size(); ++i)
    results.received.push_back(expected[i].options.requires_grad() ? outputs[i] : outputs[i].detach());
  return results;
}

at::Tensor send(const at::Tensor& self, int to, const Group& group, int tag) {
  return batch_send_recv({{self, to, tag}}, {}, group).sent;
}

at::Tensor recv(const std::vector<std::int64_t>& sizes, const at::TensorOptions& options, int from,
                const Group& group, int tag) {
  return batch_send_recv({}, {{sizes, options, from, tag}}, group).received[0];
}

}  // namespace meshtorch

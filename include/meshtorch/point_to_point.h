// Tensors between two ranks of a group. Only the two take part; they agree on types, shapes and tags before
// anything is sent, and an error on both names what each of them called. A call waits for its peer, in the
// group's time limit; on gloo, and nccl, what is received may still be under way and waits at its first use.
//
// Gradients travel back: backward of what was received sends its gradient to the sender, whose `send` must be
// part of its own backward: add the zero that send gives to the loss, or call backward on it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <vector>

#include "meshtorch/api.h"
#include "meshtorch/group.h"

namespace meshtorch {

// A message to another rank of a group.
struct SendTo {
  at::Tensor tensor;
  int to = 0;  // a rank of the group
  int tag = 0;
};

// What is expected: with requires_grad() if the sender's tensor requires gradients.
struct ReceiveFrom {
  std::vector<std::int64_t> sizes;
  at::TensorOptions options;
  int from = 0;  // a rank of the group
  int tag = 0;
};

// What batch_send_recv returns.
struct SentAndReceived {
  std::vector<at::Tensor> received;
  at::Tensor sent;  // a zero; its backward receives the gradients of what was sent
};

// All at once: rings and exchanges of neighbours in any order. Between two ranks the sends of one, in order,
// are what the other receives.
MESHTORCH_API SentAndReceived batch_send_recv(const std::vector<SendTo>& sends,
                                              const std::vector<ReceiveFrom>& receives,
                                              const Group& group = {});

// One message between two ranks. send() returns a zero, whose backward receives the gradient of `self`;
// recv() returns the tensor, whose backward sends it. Both throw if the two ranks disagree on the message.
MESHTORCH_API at::Tensor send(const at::Tensor& self, int to, const Group& group = {}, int tag = 0);
MESHTORCH_API at::Tensor recv(const std::vector<std::int64_t>& sizes, const at::TensorOptions& options,
                              int from, const Group& group = {}, int tag = 0);

}  // namespace meshtorch

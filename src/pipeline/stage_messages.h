// What neighbouring stages on different ranks send each other.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "meshtorch/group.h"

namespace meshtorch::internal {

// What the receiver has to know of a tensor.
struct TensorFacts {
  std::vector<std::int64_t> sizes;
  at::ScalarType type = at::kFloat;
  bool requires_grad = false;

  static TensorFacts of(const at::Tensor& tensor);
  at::Tensor zeros() const;
  std::string to_string() const;
  friend bool operator==(const TensorFacts&, const TensorFacts&) = default;
};
std::string to_string(const std::vector<TensorFacts>& facts);

// Both ranks of a pair must post their messages in one order. Neither sends nor receives wait for the peer,
// unless several of them are under way.
class StageMessages {
 public:
  explicit StageMessages(Group group) : group_(std::move(group)) {}

  void send(const std::vector<at::Tensor>& tensors, int to);
  // The data of the results may be under way: wait_tensor() before they are used.
  std::vector<at::Tensor> receive(const std::vector<TensorFacts>& facts, int from);
  // Types and sizes, in a message of their own. Receiving them waits.
  void send_facts(const std::vector<TensorFacts>& facts, int to);
  std::vector<TensorFacts> receive_facts(int from);
  // Waits until all that was sent has been taken.
  void finish();

 private:
  const Group group_;
  std::map<int, std::deque<at::Tensor>> sent_;  // by rank; there when the message has been taken
};

}  // namespace meshtorch::internal

// Messages between stages: posted exchanges between two ranks.
#include "pipeline/stage_messages.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "collectives/peer_exchange.h"
#include "meshtorch/collectives.h"

namespace meshtorch::internal {
namespace {

constexpr std::int64_t kFactsSize = 256;     // numbers in a message of facts
constexpr std::size_t kMaxSentUnderWay = 4;  // to one rank

}  // namespace

TensorFacts TensorFacts::of(const at::Tensor& tensor) {
  return {tensor.sizes().vec(), tensor.scalar_type(), tensor.requires_grad()};
}

at::Tensor TensorFacts::zeros() const { return at::zeros(sizes, at::TensorOptions(type)); }

std::string TensorFacts::to_string() const {
  return c10::str(c10::toString(type), c10::IntArrayRef(sizes), requires_grad ? ", requires_grad" : "");
}

std::string to_string(const std::vector<TensorFacts>& facts) {
  std::string text;
  for (const TensorFacts& one : facts) text.append(text.empty() ? "" : "; ").append(one.to_string());
  return text.empty() ? "nothing" : text;
}

void StageMessages::send(const std::vector<at::Tensor>& tensors, int to) {
  if (tensors.empty()) return;
  std::vector<SendTo> sends;
  for (const at::Tensor& tensor : tensors) sends.push_back({tensor.detach(), to});
  std::deque<at::Tensor>& sent = sent_[to];
  sent.push_back(exchange_with_peers(sends, {}, group_, Meet::when_used).sent);
  while (sent.size() > kMaxSentUnderWay) {
    wait_tensor(sent.front());
    sent.pop_front();
  }
}

std::vector<at::Tensor> StageMessages::receive(const std::vector<TensorFacts>& facts, int from) {
  if (facts.empty()) return {};
  std::vector<ReceiveFrom> receives;
  for (const TensorFacts& one : facts) receives.push_back({one.sizes, at::TensorOptions(one.type), from});
  return exchange_with_peers({}, receives, group_, Meet::when_used).received;
}

void StageMessages::send_facts(const std::vector<TensorFacts>& facts, int to) {
  std::vector<std::int64_t> numbers{static_cast<std::int64_t>(facts.size())};
  for (const TensorFacts& one : facts) {
    numbers.insert(numbers.end(),
                   {static_cast<std::int64_t>(one.type), one.requires_grad ? 1 : 0, std::ssize(one.sizes)});
    numbers.insert(numbers.end(), one.sizes.begin(), one.sizes.end());
  }
  TORCH_CHECK_NOT_IMPLEMENTED(std::ssize(numbers) <= kFactsSize, "meshtorch: a stage of a pipeline passes ",
                              facts.size(), " tensors on, whose types and sizes are ", numbers.size(),
                              " numbers; at most ", kFactsSize,
                              " fit\n  do: pass fewer tensors, or put some together");
  at::Tensor message = at::zeros({kFactsSize}, at::TensorOptions(at::kLong));
  std::copy(numbers.begin(), numbers.end(), message.mutable_data_ptr<std::int64_t>());
  send({message}, to);
}

std::vector<TensorFacts> StageMessages::receive_facts(int from) {
  const at::Tensor message = wait_tensor(receive({{{kFactsSize}, at::kLong, false}}, from)[0]);
  const std::int64_t* next = message.const_data_ptr<std::int64_t>();
  std::vector<TensorFacts> facts(static_cast<std::size_t>(*next++));
  for (TensorFacts& one : facts) {
    one.type = static_cast<at::ScalarType>(next[0]);
    one.requires_grad = next[1] != 0;
    one.sizes.assign(next + 3, next + 3 + next[2]);
    next += 3 + next[2];
  }
  return facts;
}

void StageMessages::finish() {
  for (auto& [to, sent] : sent_) {
    for (const at::Tensor& one : sent) wait_tensor(one);
    sent.clear();
  }
}

}  // namespace meshtorch::internal

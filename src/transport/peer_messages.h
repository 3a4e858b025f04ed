// The messages between this rank and one other.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "meshtorch/group.h"
#include "signature/collective_signature.h"

namespace meshtorch::internal {

// One tensor on its way, as both ranks know it.
struct Message {
  std::vector<std::int64_t> sizes;
  at::ScalarType type;
  bool requires_grad;
  int tag;

  std::int64_t bytes() const {
    return c10::multiply_integers(sizes) * static_cast<std::int64_t>(c10::elementSize(type));
  }
  void add_to(CallHash& hash) const {
    hash.add(sizes.size());
    for (const std::int64_t size : sizes) hash.add(static_cast<std::uint64_t>(size));
    hash.add(static_cast<std::uint64_t>(type));
    hash.add(requires_grad ? 1 : 0);
    hash.add(static_cast<std::uint64_t>(tag));
  }
  std::string text() const {
    return c10::str(c10::toString(type), c10::IntArrayRef(sizes), requires_grad ? ", requires_grad" : "",
                    tag == 0 ? "" : c10::str(", tag ", tag));
  }
};
using Messages = std::vector<Message>;

std::int64_t bytes_in(const Messages& messages);
std::string text_of_messages(const Messages& sends, const Messages& receives, std::int64_t peer);

// What one rank of a pair calls. Both know what goes which way, so that it is hashed as the lower one sees
// it.
class PeerSignature : public CollectiveSignature {
 public:
  PeerSignature(const Messages& sends, const Messages& receives, std::int64_t self, std::int64_t peer,
                const CallSplits* bytes)
      : CollectiveSignature(CallKind::send_recv), sends_(sends), receives_(receives), peer_(peer) {
    splits_ = bytes;
    for (const Messages* messages : {self < peer ? &sends : &receives, self < peer ? &receives : &sends}) {
      hash_.add(messages->size());
      for (const Message& message : *messages) message.add_to(hash_);
    }
  }
  std::string description() const override { return text_of_messages(sends_, receives_, peer_); }

 private:
  const Messages& sends_;
  const Messages& receives_;
  std::int64_t peer_;
};

// Runs `body`; an error that does not say which messages were waited for is told so.
template <class Body>
void naming(const std::string& messages, const Body& body) {
  try {
    body();
  } catch (c10::Error& error) {
    if (error.msg().find(messages) == std::string::npos) error.add_context("  the messages: " + messages);
    throw;
  }
}

// A wait that happens once, whoever asks.
class MessageWait {
 public:
  MessageWait(std::function<void()> wait, std::string messages)
      : wait_(std::move(wait)), messages_(std::move(messages)) {}
  void wait(Collective kind);

 private:
  std::function<void()> wait_;
  std::string messages_;
  std::once_flag once_;
  std::exception_ptr error_;
};

// What is under way with one peer: the results of its receives may be pending.
struct MessagesUnderway {
  std::shared_ptr<MessageWait> arrival;  // null if all is here
  std::vector<at::Tensor> received;
};

// All that goes between this rank and one other.
struct PeerMessages {
  Messages sends;
  Messages receives;
  std::vector<at::Tensor> given{};       // the tensors of `sends`
  std::vector<std::size_t> positions{};  // of `receives` in the results
  std::vector<at::TensorOptions> options{};

  at::Device device() const { return given.empty() ? options[0].device() : given[0].device(); }
};

}  // namespace meshtorch::internal

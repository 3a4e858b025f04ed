// The messages between two ranks, in words and as waits.
#include "transport/peer_messages.h"

#include "transport/comm_wait.h"

namespace meshtorch::internal {

std::int64_t bytes_in(const Messages& messages) {
  std::int64_t sum = 0;
  for (const Message& message : messages) sum += message.bytes();
  return sum;
}

std::string text_of_messages(const Messages& sends, const Messages& receives, std::int64_t peer) {
  std::string all;
  const auto add = [&](const std::string& part) { all.append(all.empty() ? "" : ", ").append(part); };
  for (const Message& message : sends) add(c10::str("send(", message.text(), ") to rank ", peer));
  for (const Message& message : receives) add(c10::str("recv(", message.text(), ") from rank ", peer));
  return all;
}

void MessageWait::wait(Collective kind) {
  std::call_once(once_, [&] {
    const CommWait waiting(kind);
    try {
      naming(messages_, wait_);
    } catch (...) {
      error_ = std::current_exception();
    }
  });
  if (error_) std::rethrow_exception(error_);
}

}  // namespace meshtorch::internal

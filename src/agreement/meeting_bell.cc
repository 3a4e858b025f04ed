// The bell of a meeting, on the kernel's futex.
#include "agreement/meeting_bell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>

namespace meshtorch::internal {

void wait_for_bell(std::atomic<std::uint32_t>& bell, std::uint32_t heard, std::chrono::milliseconds limit) {
  const std::timespec time{.tv_sec = limit.count() / 1000, .tv_nsec = limit.count() % 1000 * 1000000};
  syscall(SYS_futex, &bell, FUTEX_WAIT, heard, &time, nullptr, 0);
}

void ring(MeetingMemory& memory) {
  if (memory.sleepers.load() == 0) return;
  memory.bell.fetch_add(1);
  syscall(SYS_futex, &memory.bell, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

}  // namespace meshtorch::internal

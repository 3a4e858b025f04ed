// How ranks that sleep in a meeting are woken: a bell in its memory, which the kernel watches.
#pragma once

#include <chrono>
#include <cstdint>

#include "agreement/meeting_memory.h"

namespace meshtorch::internal {

// Sleepers look so often whether a process is gone without a word, and tell so often for whom they wait.
constexpr std::chrono::milliseconds kLookout(100);

// The number of the meeting that a gathering is for.
inline std::uint64_t meeting_of(std::uint64_t gathering) { return gathering >> 16; }

// Sleeps until the bell has rung since it was `heard`, at most as long as the limit.
void wait_for_bell(std::atomic<std::uint32_t>& bell, std::uint32_t heard, std::chrono::milliseconds limit);
// Wakes those who sleep in a meeting, to look whether something has changed.
void ring(MeetingMemory& memory);

}  // namespace meshtorch::internal

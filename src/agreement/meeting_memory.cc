// Where the parts of a meeting's memory lie.
#include "agreement/meeting_memory.h"

#include <algorithm>
#include <new>
#include <type_traits>

#include "liveness/shared_text.h"

namespace meshtorch::internal {
namespace {

constexpr std::size_t kLine = 64;

std::size_t whole_lines(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

std::size_t numbers_bytes(std::size_t size) { return whole_lines(2 * size * sizeof(std::int64_t)); }

std::size_t index_of(int rank, int turn) {
  return 2 * static_cast<std::size_t>(rank) + static_cast<std::size_t>(turn);
}

}  // namespace

void MeetingSlot::write_origin(std::string_view name) {
  std::uint64_t characters[std::extent_v<decltype(origin)>] = {};
  name.copy(reinterpret_cast<char*>(characters), sizeof(characters));
  for (std::size_t i = 0; i < std::size(characters); ++i)
    origin[i].store(characters[i], std::memory_order_relaxed);
}

std::string MeetingSlot::read_origin() const {
  std::uint64_t characters[std::extent_v<decltype(origin)> + 1] = {};  // the last one ends the text
  for (std::size_t i = 0; i < std::size(origin); ++i)
    characters[i] = origin[i].load(std::memory_order_relaxed);
  return reinterpret_cast<const char*>(characters);
}

void MeetingSlot::write_words(const std::string& text) { write_shared_text(words, text); }

std::string MeetingSlot::read_words() const { return read_shared_text(words); }

void MeetingSlot::tell_wait(WaitPlace place, const Wait* wait) {
  WaitNote& note = waits[static_cast<std::size_t>(place)];
  if (wait != nullptr) {
    note.write(*wait);
  } else {
    note.clear();
  }
}

std::vector<Wait> MeetingSlot::read_waits() const {
  std::vector<Wait> found;
  for (const WaitNote& note : waits) {
    if (note.is_there()) found.push_back(note.read());
  }
  return found;
}

void MeetingSlot::say(ExitReason meaning, const std::string& text) {
  const ExitReason before = exit_reason;
  if (before == ExitReason::gave_up) return;
  std::string all = text;
  if (before == ExitReason::error && meaning == ExitReason::left) {
    const std::string earlier = read_words();
    if (text.find(earlier.substr(earlier.find(": ") + 2)) == std::string::npos)
      all.append("; before that ").append(earlier);
  }
  write_words(all);
  exit_reason = meaning;
}

std::size_t MeetingMemory::bytes_for(int size, std::size_t stage_bytes) {
  const auto n = static_cast<std::size_t>(size);
  return sizeof(MeetingMemory) + n * (sizeof(MeetingSlot) + 2 * numbers_bytes(n) + 2 * stage_bytes);
}

MeetingMemory* MeetingMemory::make(void* room, int size, std::size_t stage_bytes) {
  auto* memory = new (room) MeetingMemory;
  memory->size = static_cast<std::uint32_t>(size);
  memory->stage_bytes = stage_bytes;
  for (int rank = 0; rank < size; ++rank) new (&memory->slot(rank)) MeetingSlot;
  return memory;
}

MeetingSlot& MeetingMemory::slot(int rank) { return reinterpret_cast<MeetingSlot*>(after_header())[rank]; }

void MeetingMemory::note_failure(int rank, const FailedCall& failed) {
  MeetingSlot& mine = slot(rank);
  std::uint64_t most = mine.failures + 1;
  for (int r = 0; r < static_cast<int>(size); ++r) most = std::max(most, slot(r).failures.load());
  mine.failure.write(failed);
  mine.failures = most;
  failures.fetch_add(1);
}

int MeetingMemory::behind(int rank) {
  for (int r = 0; r < static_cast<int>(size); ++r) {
    if (slot(r).failures < slot(rank).failures) return r;
  }
  return -1;
}

std::int64_t* MeetingMemory::numbers(int rank, int turn) {
  char* first = after_header() + size * sizeof(MeetingSlot);
  return reinterpret_cast<std::int64_t*>(first + index_of(rank, turn) * numbers_bytes(size));
}

char* MeetingMemory::stage(int rank, int turn) {
  char* first = after_header() + size * (sizeof(MeetingSlot) + 2 * numbers_bytes(size));
  return first + index_of(rank, turn) * stage_bytes;
}

}  // namespace meshtorch::internal

// Why a rank does not come to a collective, as it tells those who wait for it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace meshtorch::internal {

// What the words in a rank's slot say to those who wait for it.
enum class ExitReason : std::uint32_t {
  none,
  gave_up,  // why it, or its last collective, failed: others know who is at fault
  error,    // an operator failed since its last collective; it may yet come
  left,     // why it will not come again
};

// A call of an operator on a rank's own part of the data, which that data made fail. Ranks with other data
// are told of it.
struct FailedCall {
  enum class Kind : std::uint32_t { error, index, value, not_implemented };
  int rank = 0;  // of the world
  Kind kind = Kind::error;
  std::string words;           // "aten::embedding: index out of range in self"
  std::vector<int> concerned;  // world ranks, which call the operator alike

  // In the group of these world ranks, everybody is.
  bool concerns(const std::vector<int>& world_ranks) const;
};

// A failed call, as a rank tells its groups. Ranks of the world above 1,023 are left out of those whom it
// concerns. Peers may read while it is written.
class FailureNote {
 public:
  void write(const FailedCall& failed);
  FailedCall read() const;

 private:
  std::atomic<std::int32_t> rank_ = 0;
  std::atomic<FailedCall::Kind> kind_ = FailedCall::Kind::error;
  std::array<std::atomic<std::uint64_t>, 16> concerned_ = {};  // a bit for each rank
  char words_[1024];
};

}  // namespace meshtorch::internal

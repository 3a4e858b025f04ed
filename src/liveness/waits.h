// Who waits for whom: at the end of a chain of ranks that wait is the one that all of them wait for.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace meshtorch::internal {

// For whom a rank waits: world ranks on this host, the wait in words ("rank 3 in all_reduce #7 of ranks 1,
// 3"), whether ranks of other hosts, which the words name, may be those that are late, and whether it gave
// up.
struct Wait {
  std::vector<int> ranks;
  std::string what;
  bool is_for_others = false;
  bool is_given_up = false;
};

// Where a rank waits: threads of one may be at both at a time, one in a collective, one that saves a
// checkpoint.
enum class WaitPlace : std::uint8_t { group, store };
constexpr std::size_t kWaitPlaces = 2;

// The wait of a rank at such a place, in whatever group, as it tells those who wait for it. As many ranks as
// fit. Peers may read while it is written.
class WaitNote {
 public:
  void write(const Wait& wait);
  void clear() { is_there_ = 0; }
  bool is_there() const { return is_there_ != 0; }
  Wait read() const;

 private:
  static constexpr std::size_t kRanks = 8;
  std::atomic<std::uint32_t> is_there_ = 0;
  std::atomic<bool> is_for_others_ = false;
  std::atomic<bool> is_given_up_ = false;
  std::array<std::atomic<std::int32_t>, kRanks> ranks_ = {};  // one more than the number; 0: none
  char what_[256];
};

// Why a wait for other ranks can never end; no words if it can.
struct WhyUnreachable {
  enum class Cause : std::uint8_t {
    fault,    // of the rank that the words name
    gave_up,  // the rank that they name went because of another, which may be on another host
  };
  std::string words = {};
  Cause cause = Cause::fault;

  bool is_there() const { return !words.empty(); }
};

// What is known of a rank on this host.
struct Whereabouts {
  std::vector<Wait> waits;
  std::string state;  // "its process 1234 is stopped"
};

// One line for each rank that the rank `self` waits for, in a chain or at once, from those that are `late` in
// its own call on: for whom they wait, or what they do if they wait for none. `look` says nothing of ranks
// that are not on this host.
std::string follow_waits(int self, const std::vector<int>& late,
                         const std::function<std::optional<Whereabouts>(int world_rank)>& look);

// How the ranks of this host tell each other of waits; see shm_membership.h.
struct HostPeers {
  // `self` is a rank of this process; -1: the only one. Null: it goes on.
  void (*tell_wait)(int self, WaitPlace place, const Wait* wait);
  std::string (*follow_waits)(int self, const std::vector<int>& late);
  WhyUnreachable (*why_unreachable)(const std::vector<int>& world_ranks);
  // Why this process goes, if it goes now.
  void (*note_failure)(const std::string& problem);
};
// Set when this process first shares memory with others, null before.
inline std::atomic<const HostPeers*> host_peers = nullptr;

// "ranks 1, 3"
std::string list_ranks(const std::vector<int>& ranks);

}  // namespace meshtorch::internal

// Many meetings of threads that come early and late, agree and differ, under the thread sanitizer: what a
// rank wrote before a meeting is what the others read after it.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

#include "agreement/meeting.h"

namespace {

using namespace meshtorch::internal;

constexpr std::chrono::milliseconds kTimeout(60000);
constexpr std::size_t kStage = 4096;
// Where ranks write before each kind of meeting; what peers may still be reading is left alone.
constexpr std::size_t kEnter = 0;
constexpr std::size_t kSync = 64;
constexpr std::size_t kNext = 4032;

// Of one rank, in the round with this number.
struct Note {
  std::int64_t round;
  std::int64_t rank;
};

class Rank {
 public:
  Rank(MeetingMemory& memory, int rank, int ranks, int ranks_on_host)
      : meeting_(memory, rank,
                 {std::vector<int>(static_cast<std::size_t>(ranks)), ranks_on_host, false,
                  [] { return WhyUnreachable(); }}),
        rank_(rank),
        ranks_(ranks) {}

  long run(std::int64_t rounds) {
    unsigned seed = static_cast<unsigned>(rank_);
    for (std::int64_t i = 0; i < rounds; ++i) {
      if (rand_r(&seed) % 2000 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
      write(meeting_.stage(), kEnter, i);
      if (i % 500 == 499) {
        disagree(i);
        continue;
      }
      meeting_.enter(CollectiveSignature(CallKind::all_reduce), kTimeout);
      compare(kEnter, i);
      if (i % 3 == 0) {
        write(meeting_.stage_of(rank_), kSync, i);
        meeting_.sync(kTimeout);
        compare(kSync, i);
      }
      if (i % 7 == 0) {
        write(meeting_.stage(), kNext, i);
        meeting_.next_stage(kTimeout);
        compare(kNext, i);
      }
      meeting_.leave();
    }
    return wrong_;
  }

 private:
  void write(char* stage, std::size_t place, std::int64_t round) const {
    const Note note{round, rank_};
    std::memcpy(stage + place, &note, sizeof(note));
  }
  void compare(std::size_t place, std::int64_t round) {
    for (int r = 0; r < ranks_; ++r) {
      Note note{};
      std::memcpy(&note, meeting_.stage_of(r) + place, sizeof(note));
      if (note.round != round || note.rank != r) ++wrong_;
    }
  }
  void disagree(std::int64_t round) {
    const bool is_odd_one = round / 500 % ranks_ == rank_;
    try {
      meeting_.enter(CollectiveSignature(is_odd_one ? CallKind::barrier : CallKind::all_reduce), kTimeout);
      if (ranks_ > 1) ++wrong_;
      meeting_.leave();
    } catch (const std::exception&) {
    }
  }

  GroupMeeting meeting_;
  int rank_;
  int ranks_;
  long wrong_ = 0;
};

long run(int ranks, int ranks_on_host, std::int64_t rounds) {
  constexpr std::align_val_t kLine{64};
  const std::size_t bytes = MeetingMemory::bytes_for(ranks, kStage);
  void* room = std::memset(::operator new(bytes, kLine), 0, bytes);
  MeetingMemory& memory = *MeetingMemory::make(room, ranks, kStage);
  std::atomic<long> wrong = 0;
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] { wrong += Rank(memory, r, ranks, ranks_on_host).run(rounds); });
  }
  for (std::thread& thread : threads) thread.join();
  ::operator delete(room, kLine);
  std::printf("%d ranks, %s: %ld wrong\n", ranks, ranks_on_host > 1000 ? "sleeping" : "watching",
              wrong.load());
  return wrong;
}

}  // namespace

int main() {
  const long wrong = run(1, 1, 1000) + run(2, 2, 10000) + run(2, 10000, 3000) + run(4, 10000, 2000);
  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

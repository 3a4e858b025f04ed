// Memory that processes of one host share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace meshtorch::internal {

// It has no name in any file system: others open it through its maker's entry in /proc, which only processes
// of the same user may, and nothing is left behind however the processes end.
class Segment {
 public:
  // Zeroes, aligned to a page.
  static std::shared_ptr<Segment> make(std::size_t bytes);
  // By the address that the maker gave, in this process or another. Throws if it cannot be opened.
  static std::shared_ptr<Segment> open(const std::string& address);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  void* data() const { return data_; }
  std::string address() const;
  // Nobody can open it any more.
  void close_door();

 private:
  Segment(int file, std::size_t bytes);

  int file_;
  std::size_t bytes_;
  void* data_ = nullptr;
  std::uint64_t secret_ = 0;
};

// What tells the processes that can share memory from others: the running system, who sees whom in it, and
// the part of the machine that MESHTORCH_HOST_PART names, so that one machine can stand for several.
std::string host_identity();

// When a process began, in ticks since its host did; 0 if there is no such process, or it has ended.
std::uint64_t process_start(int process);

// What a process does: "is stopped", "runs", "sleeps", "has ended".
std::string process_state(int process);

}  // namespace meshtorch::internal

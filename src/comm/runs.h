// Pieces of memory, contiguous or in equal runs, read one after the other as a stream of bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

namespace meshtorch {

// `count` runs of `run` bytes that begin `stride` bytes apart.
struct Runs {
  char* data = nullptr;
  std::size_t run = 0;
  std::size_t count = 1;
  std::size_t stride = 0;

  std::size_t bytes() const { return run * count; }
};
using RunList = std::span<const Runs>;

inline std::size_t bytes_of(RunList list) {
  std::size_t sum = 0;
  for (const Runs& runs : list) sum += runs.bytes();
  return sum;
}

// A place in the stream of a list.
class RunCursor {
 public:
  explicit RunCursor(RunList list, std::size_t begin = 0) : list_(list) {
    while (!list_.empty() && begin >= list_[0].bytes()) {
      begin -= list_[0].bytes();
      list_ = list_.subspan(1);
    }
    if (list_.empty()) return;
    row_ = begin / list_[0].run;
    offset_ = begin % list_[0].run;
  }

  // The bytes that lie together from here on.
  char* data() const { return list_[0].data + row_ * list_[0].stride + offset_; }
  std::size_t together() const { return list_.empty() ? 0 : list_[0].run - offset_; }
  // By no more than lie together.
  void advance(std::size_t bytes) {
    offset_ += bytes;
    if (offset_ < list_[0].run) return;
    offset_ = 0;
    if (++row_ < list_[0].count) return;
    row_ = 0;
    do list_ = list_.subspan(1);
    while (!list_.empty() && list_[0].bytes() == 0);
  }

 private:
  RunList list_;
  std::size_t row_ = 0;
  std::size_t offset_ = 0;
};

inline void copy_bytes(char* to, const char* from, std::size_t bytes) {
  if (to != from) std::memmove(to, from, bytes);
}

// Copies that many bytes from one stream to another.
inline void copy_stream(RunCursor from, RunCursor to, std::size_t bytes) {
  while (bytes > 0) {
    const std::size_t part = std::min({bytes, from.together(), to.together()});
    copy_bytes(to.data(), from.data(), part);
    from.advance(part);
    to.advance(part);
    bytes -= part;
  }
}
inline void copy_stream(RunCursor from, char* to, std::size_t bytes) {
  const Runs flat{to, bytes};
  copy_stream(from, RunCursor(RunList(&flat, 1)), bytes);
}
inline void copy_stream(const char* from, RunCursor to, std::size_t bytes) {
  const Runs flat{const_cast<char*>(from), bytes};
  copy_stream(RunCursor(RunList(&flat, 1)), to, bytes);
}

}  // namespace meshtorch

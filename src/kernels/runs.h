// Pieces of memory, contiguous or in equal runs, read one after the other as a stream of bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

namespace meshtorch::internal {

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
    advance_rows(1);
  }

  // How many pieces of that many bytes, no more than lie together, follow at one distance from each other.
  struct Steps {
    std::size_t count;
    std::size_t stride;
  };
  Steps steps(std::size_t bytes) const {
    const Runs& runs = list_[0];
    if (offset_ == 0 && runs.run == bytes) return {runs.count - row_, runs.stride};
    return {(runs.run - offset_) / bytes, bytes};
  }
  void advance_steps(std::size_t bytes, std::size_t count) {
    if (offset_ == 0 && list_[0].run == bytes) return advance_rows(count);
    advance(bytes * count);
  }

 private:
  void advance_rows(std::size_t count) {
    row_ += count;
    if (row_ < list_[0].count) return;
    row_ = 0;
    do list_ = list_.subspan(1);
    while (!list_.empty() && list_[0].bytes() == 0);
  }

  RunList list_;
  std::size_t row_ = 0;
  std::size_t offset_ = 0;
};

template <std::size_t kBytes>
void copy_items(char* to, std::size_t to_stride, const char* from, std::size_t from_stride,
                std::size_t count) {
  for (; count > 0; --count, to += to_stride, from += from_stride) std::memcpy(to, from, kBytes);
}

// Pieces of equal size, from and to places at equal distances.
inline void copy_pieces(char* to, std::size_t to_stride, const char* from, std::size_t from_stride,
                        std::size_t bytes, std::size_t count) {
  if (to == from && (count == 1 || to_stride == from_stride)) return;
  if (count == 1 || (to_stride == bytes && from_stride == bytes)) {
    std::memmove(to, from, bytes * count);
    return;
  }
  switch (bytes) {  // a call for each would take longer than the copy
    case 1:
      return copy_items<1>(to, to_stride, from, from_stride, count);
    case 2:
      return copy_items<2>(to, to_stride, from, from_stride, count);
    case 4:
      return copy_items<4>(to, to_stride, from, from_stride, count);
    case 8:
      return copy_items<8>(to, to_stride, from, from_stride, count);
    case 16:
      return copy_items<16>(to, to_stride, from, from_stride, count);
    default:
      for (; count > 0; --count, to += to_stride, from += from_stride) std::memcpy(to, from, bytes);
  }
}

// Copies that many bytes from one stream to another, and moves on in both.
inline void move_stream(RunCursor& from, RunCursor& to, std::size_t bytes) {
  while (bytes > 0) {
    const std::size_t part = std::min({bytes, from.together(), to.together()});
    const RunCursor::Steps source = from.steps(part);
    const RunCursor::Steps target = to.steps(part);
    const std::size_t count = std::min({source.count, target.count, bytes / part});
    copy_pieces(to.data(), target.stride, from.data(), source.stride, part, count);
    from.advance_steps(part, count);
    to.advance_steps(part, count);
    bytes -= part * count;
  }
}

inline void copy_stream(RunCursor from, RunCursor to, std::size_t bytes) { move_stream(from, to, bytes); }
inline void copy_stream(RunCursor from, char* to, std::size_t bytes) {
  const Runs flat{to, bytes};
  copy_stream(from, RunCursor(RunList(&flat, 1)), bytes);
}
inline void copy_stream(const char* from, RunCursor to, std::size_t bytes) {
  const Runs flat{const_cast<char*>(from), bytes};
  copy_stream(RunCursor(RunList(&flat, 1)), to, bytes);
}

}  // namespace meshtorch::internal

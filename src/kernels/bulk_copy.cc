// Copies past the caches, by stores that do not read the lines that they fill.
#include "kernels/bulk_copy.h"

#include <unistd.h>

#include <cstdint>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace meshtorch::internal {
namespace {

// Of a machine that does not say.
constexpr std::size_t kUsualCache = std::size_t{1} << 20;
// What is read for two copies stays in the cache meanwhile.
constexpr std::size_t kBlockOfTwo = std::size_t{32} << 10;

#if defined(__x86_64__)
constexpr std::size_t kStoredLine = 64;
// Shorter pieces have few whole lines.
constexpr std::size_t kShortestPiece = 16 * kStoredLine;

void copy_lines(char* to, const char* from, std::size_t lines) {
  for (; lines > 0; --lines, to += kStoredLine, from += kStoredLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from);
    auto* target = reinterpret_cast<__m128i*>(to);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
}

void copy_piece(char* to, const char* from, std::size_t bytes) {
  const std::size_t past_line = reinterpret_cast<std::uintptr_t>(to) % kStoredLine;
  const std::size_t head = past_line == 0 ? 0 : kStoredLine - past_line;
  const std::size_t lines = (bytes - head) / kStoredLine;
  const std::size_t end = head + lines * kStoredLine;
  std::memcpy(to, from, head);
  copy_lines(to + head, from + head, lines);
  std::memcpy(to + end, from + end, bytes - end);
}

void move_past_caches(RunCursor& from, RunCursor& to, std::size_t bytes) {
  while (bytes > 0) {
    std::size_t part = std::min({bytes, from.together(), to.together()});
    if (part >= kShortestPiece) {
      copy_piece(to.data(), from.data(), part);
      from.advance(part);
      to.advance(part);
    } else {
      part *= std::min({from.steps(part).count, to.steps(part).count, bytes / part});
      move_stream(from, to, part);
    }
    bytes -= part;
  }
}
#else
void move_past_caches(RunCursor& from, RunCursor& to, std::size_t bytes) { move_stream(from, to, bytes); }
#endif

}  // namespace

bool is_more_than_a_cache(std::size_t bytes) {
  static const std::size_t cache = [] {
    const long found = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return found > 0 ? static_cast<std::size_t>(found) : kUsualCache;
  }();
  return bytes > cache;
}

#if defined(__x86_64__)
void store_past_caches(char* to, const char* from, std::size_t bytes) {
  if (bytes < kShortestPiece) {
    std::memcpy(to, from, bytes);
  } else {
    copy_piece(to, from, bytes);
  }
}
void finish_stores() { _mm_sfence(); }
#else
void store_past_caches(char* to, const char* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
void finish_stores() {}
#endif

void copy_bulk(RunCursor from, RunCursor to, std::size_t bytes) {
  if (!is_more_than_a_cache(bytes)) return move_stream(from, to, bytes);
  move_past_caches(from, to, bytes);
  finish_stores();
}

void copy_bulk(RunList from, char* to) {
  const Runs flat{to, bytes_of(from)};
  copy_bulk(RunCursor(from), RunCursor(RunList(&flat, 1)), flat.run);
}

void copy_bulk(const char* from, RunList to) {
  const Runs flat{const_cast<char*>(from), bytes_of(to)};
  copy_bulk(RunCursor(RunList(&flat, 1)), RunCursor(to), flat.run);
}

void copy_bulk_twice(RunList from, char* first, RunList second) {
  const std::size_t all = bytes_of(from);
  const auto move = is_more_than_a_cache(all) ? &move_past_caches : &move_stream;
  const Runs flat{first, all};
  RunCursor to_first(RunList(&flat, 1));
  RunCursor to_second(second);
  RunCursor source(from);
  for (std::size_t begin = 0; begin < all; begin += kBlockOfTwo) {
    const std::size_t bytes = std::min(kBlockOfTwo, all - begin);
    RunCursor again = source;
    move(again, to_first, bytes);
    move(source, to_second, bytes);
  }
  finish_stores();
}

}  // namespace meshtorch::internal

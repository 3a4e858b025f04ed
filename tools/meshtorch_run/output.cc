// Cuts the streams of the ranks into lines and writes them one after another, never blocking the
// launcher.
#include "output.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace meshtorch::run {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{64} << 10;
// A longer line is broken, so that a rank which never ends its line cannot fill the memory.
constexpr std::size_t kLongestLine = std::size_t{1} << 20;

bool can_write(int fd) {
  pollfd request{fd, POLLOUT, 0};
  return poll(&request, 1, 0) > 0;
}

}  // namespace

void OutputQueue::put_line(const void* source, int destination, std::string_view prefix,
                           std::string_view line, char terminator) {
  if (open_source_ != source) end_open_line();
  append(destination, prefix);
  append(destination, line);
  append(destination, {&terminator, 1});
  open_source_ = terminator == '\r' ? source : nullptr;
  open_destination_ = destination;
}

void OutputQueue::end_open_line(const void* source) {
  if (open_source_ == source) end_open_line();
}

void OutputQueue::end_open_line() {
  if (open_source_ != nullptr) append(open_destination_, "\n");
  open_source_ = nullptr;
}

void OutputQueue::append(int destination, std::string_view text) {
  if (broken_.contains(destination)) return;
  if (chunks_.empty() || chunks_.back().destination != destination ||
      chunks_.back().text.size() >= kChunkBytes)
    chunks_.push_back({destination, {}});
  chunks_.back().text += text;
  bytes_ += text.size();
}

int OutputQueue::write_some() {
  while (!chunks_.empty() && can_write(next_destination())) {
    const std::string& text = chunks_.front().text;
    // A pipe that polls as writable takes PIPE_BUF bytes without blocking, and promises no more.
    const std::size_t size = std::min<std::size_t>(PIPE_BUF, text.size() - front_written_);
    const ssize_t written = write(next_destination(), text.data() + front_written_, size);
    if (written < 0) {
      const int error = errno;
      if (error == EINTR) continue;
      if (error == EAGAIN) return 0;
      drop_destination(next_destination());
      return error;
    }
    front_written_ += static_cast<std::size_t>(written);
    bytes_ -= static_cast<std::size_t>(written);
    if (front_written_ == text.size()) {
      chunks_.pop_front();
      front_written_ = 0;
    }
  }
  return 0;
}

void OutputQueue::drop_destination(int destination) {
  broken_.insert(destination);
  std::erase_if(chunks_, [&](const Chunk& chunk) { return chunk.destination == destination; });
  front_written_ = 0;
  bytes_ = 0;
  for (const Chunk& chunk : chunks_) bytes_ += chunk.text.size();
}

LineStream::LineStream(int fd, int destination, std::string prefix)
    : fd_(fd), destination_(destination), prefix_(std::move(prefix)) {
  fcntl(fd_, F_SETFL, O_NONBLOCK);
}

LineStream::~LineStream() {
  if (fd_ >= 0) close(fd_);
}

bool LineStream::read_some(OutputQueue& output) {
  if (fd_ < 0) return false;
  std::array<char, kChunkBytes> buffer;
  ssize_t size = 0;
  do size = read(fd_, buffer.data(), buffer.size());
  while (size < 0 && errno == EINTR);
  if (size > 0) {
    split({buffer.data(), static_cast<std::size_t>(size)}, output);
    return true;
  }
  if (size == 0 || errno != EAGAIN) finish(output);
  return false;
}

void LineStream::read_present(OutputQueue& output) {
  int present = 0;
  if (fd_ < 0 || ioctl(fd_, FIONREAD, &present) != 0) return;
  // Bounded, because a process that the rank left behind may go on writing; one more read meets the
  // end.
  const int reads = present / static_cast<int>(kChunkBytes) + 2;
  for (int i = 0; i < reads && read_some(output); ++i) {
  }
}

void LineStream::finish(OutputQueue& output) {
  if (fd_ < 0) return;
  if (!partial_.empty()) emit("", '\n', output);
  output.end_open_line(this);
  close(fd_);
  fd_ = -1;
}

void LineStream::split(std::string_view bytes, OutputQueue& output) {
  while (!bytes.empty()) {
    if (std::exchange(after_return_, false) && bytes[0] == '\n') {
      output.end_open_line(this);
      bytes.remove_prefix(1);
      continue;
    }
    const std::size_t end = bytes.find_first_of("\r\n");
    if (end == std::string_view::npos) {
      partial_ += bytes;
      if (partial_.size() >= kLongestLine) emit("", '\n', output);
      return;
    }
    const bool is_return = bytes[end] == '\r';
    // Progress bars that begin with '\r' would otherwise print a bare prefix first.
    const bool nothing_to_show = is_return && end == 0 && partial_.empty();
    if (!nothing_to_show) {
      emit(bytes.substr(0, end), bytes[end], output);
      after_return_ = is_return;
    }
    bytes.remove_prefix(end + 1);
  }
}

void LineStream::emit(std::string_view end_of_line, char terminator, OutputQueue& output) {
  partial_ += end_of_line;
  output.put_line(this, destination_, prefix_, partial_, terminator);
  partial_.clear();
}

}  // namespace meshtorch::run

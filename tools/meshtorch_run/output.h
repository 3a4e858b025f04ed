// Whole lines of many ranks on one standard output and error: from the pipes of the ranks to the
// terminal.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_set>

namespace meshtorch::run {

// Text on its way to the launcher's stdout and stderr, in one order, written without ever blocking.
class OutputQueue {
 public:
  // Adds one line of a source. A line that ends in '\r' stays open: the same source may write over
  // it or end it, a line of another source goes below it.
  void put_line(const void* source, int destination, std::string_view prefix, std::string_view line,
                char terminator);
  // Ends the line that the source left open; does nothing if that has already happened.
  void end_open_line(const void* source);
  // Ends the open line of whichever source.
  void end_open_line();

  bool empty() const { return chunks_.empty(); }
  // True when readers should pause until some text is written.
  bool full() const { return bytes_ >= kHighWater; }
  // The descriptor that the oldest text waits for; the queue must not be empty.
  int next_destination() const { return chunks_.front().destination; }
  // Writes what can be written now. Returns 0, or the errno of a destination that has just broken;
  // text for a broken destination is dropped.
  int write_some();

 private:
  struct Chunk {
    int destination;
    std::string text;
  };
  static constexpr std::size_t kHighWater = std::size_t{1} << 20;

  void append(int destination, std::string_view text);
  void drop_destination(int destination);

  std::deque<Chunk> chunks_;
  std::size_t front_written_ = 0;
  std::size_t bytes_ = 0;
  std::unordered_set<int> broken_;
  const void* open_source_ = nullptr;
  int open_destination_ = -1;
};

// The read end of one rank's stdout or stderr, cut into lines. Owns the descriptor. Its address is
// its name in the queue, so it neither moves nor copies.
class LineStream {
 public:
  LineStream(int fd, int destination, std::string prefix);
  ~LineStream();
  LineStream(const LineStream&) = delete;
  LineStream& operator=(const LineStream&) = delete;

  // The descriptor to poll, or -1 after the end of the stream.
  int fd() const { return fd_; }
  // Passes on what one read gives; false when there is nothing to read now or any more.
  bool read_some(OutputQueue& output);
  // Passes on what the pipe holds at this moment, however full the queue is.
  void read_present(OutputQueue& output);
  // Passes on the last line even without a newline, and closes the descriptor.
  void finish(OutputQueue& output);

 private:
  void split(std::string_view bytes, OutputQueue& output);
  void emit(std::string_view end_of_line, char terminator, OutputQueue& output);

  int fd_;
  int destination_;
  std::string prefix_;
  std::string partial_;
  bool after_return_ = false;
};

}  // namespace meshtorch::run

// Ctrl-C or a request to end, noted while it lives so that what is unfinished can be written first.
#pragma once

namespace llama {

class Interruption {
 public:
  // Without a wish, signals do what they did.
  explicit Interruption(bool is_wanted);
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  static bool was_asked_for();
  // Ends the process as the signal would have.
  [[noreturn]] static void end_process();

 private:
  bool is_wanted_;
};

}  // namespace llama

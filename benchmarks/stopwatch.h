// Time since a moment, and the CPU time of this thread since then.
#pragma once

#include <chrono>
#include <ctime>

class Stopwatch {
 public:
  double milliseconds() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin_).count();
  }
  double cpu_milliseconds() const { return cpu_now() - cpu_begin_; }

 private:
  static double cpu_now() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
  }
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  double cpu_begin_ = cpu_now();
};

// How long a collective may take.
#include "runtime/timeout.h"

#include <c10/util/Exception.h>

#include <cstdlib>

namespace meshtorch::internal {
namespace {

constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);

void reject(const std::string& given, const char* where) {
  TORCH_CHECK_VALUE(false, "meshtorch: a timeout of ", given,
                    " is not between 1 ms and a year\n  in: ", where,
                    "\n  do: give how long a collective may take");
}

}  // namespace

std::chrono::milliseconds timeout_or_default(std::chrono::milliseconds given) {
  const char* seconds = std::getenv("MESHTORCH_TIMEOUT");
  if (given != kDefaultTimeout || seconds == nullptr || *seconds == '\0') return given;
  return timeout_of(std::atof(seconds), "MESHTORCH_TIMEOUT");
}

void check_timeout(std::chrono::milliseconds timeout, const char* where) {
  if (timeout < std::chrono::milliseconds(1) || timeout > kLongest)
    reject(std::to_string(timeout.count()) + " ms", where);
}

std::chrono::milliseconds timeout_of(double seconds, const char* where) {
  const double milliseconds = seconds * 1e3;
  const bool fits =
      milliseconds >= 1 && milliseconds <= static_cast<double>(kLongest.count());  // not for nan
  if (!fits) reject(c10::str(seconds, " s"), where);
  return std::chrono::milliseconds(static_cast<std::int64_t>(milliseconds));
}

}  // namespace meshtorch::internal

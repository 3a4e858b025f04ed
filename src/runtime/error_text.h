// What an exception says, for ranks that tell each other why they failed.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace meshtorch::internal {

// Without the backtrace that LibTorch adds.
inline std::string error_text(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

}  // namespace meshtorch::internal

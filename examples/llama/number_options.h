// Checks of numbers on the command line that say in words what is wanted: those of CLI11 print the limits of
// double, 300 digits long, and take what is no number (nan).
#pragma once

#include <CLI/App.hpp>

#include <limits>
#include <sstream>
#include <string>
#include <type_traits>

namespace llama {

// A number of the option's type T that `accepts` accepts, which is `wanted` in words.
template <class T, class Accepts>
CLI::Validator number_that_is(const std::string& wanted, const std::string& in_help, Accepts accepts) {
  return {[wanted, accepts](std::string& given) {
            T value{};
            const bool fits = CLI::detail::lexical_cast(given, value) && accepts(value);
            return fits ? std::string() : "has to be " + wanted + ", not " + given;
          },
          in_help};
}

template <class T>
CLI::Validator number_from(T least, T most = std::numeric_limits<T>::max()) {
  std::ostringstream wanted;
  wanted << (std::is_integral_v<T> ? "a whole number" : "a number") << " from " << least;
  if (most == std::numeric_limits<T>::max()) {
    wanted << " up";
  } else {
    wanted << " to " << most;
  }
  return number_that_is<T>(wanted.str(), least > 0 ? "POSITIVE" : "NONNEGATIVE",
                           [least, most](T value) { return value >= least && value <= most; });
}

inline CLI::Validator number_below_one() {
  return number_that_is<double>("a number from 0 to below 1", "in [0, 1)",
                                [](double value) { return value >= 0 && value < 1; });
}

}  // namespace llama

// What random operators draw, from their own arguments: each distribution checks the numbers it is asked
// with.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/distribution.h"

namespace meshtorch {

// Who asks for random numbers, for messages, and the type that they will have.
struct Asked {
  const char* op;
  at::ScalarType type;
};

// A function for each family of operators; what they take besides (a generator, options of the new tensor)
// is passed too, and does not matter here.
struct DrawUniform {
  Distribution operator()(const Asked& asked, double from, double to, const auto&...) const {
    return checked(asked, from, to);
  }
  static Distribution checked(const Asked& asked, double from, double to);
};
struct DrawNormal {
  Distribution operator()(const Asked& asked, double mean, double deviation, const auto&...) const {
    return checked(asked, mean, deviation);
  }
  static Distribution checked(const Asked& asked, double mean, double deviation);
};
struct DrawLogNormal {
  Distribution operator()(const Asked& asked, double mean, double deviation, const auto&...) const {
    return checked(asked, mean, deviation);
  }
  static Distribution checked(const Asked& asked, double mean, double deviation);
};
struct DrawCauchy {
  Distribution operator()(const Asked& asked, double median, double sigma, const auto&...) const {
    return checked(asked, median, sigma);
  }
  static Distribution checked(const Asked& asked, double median, double sigma);
};
struct DrawExponential {
  Distribution operator()(const Asked& asked, double rate, const auto&...) const {
    return checked(asked, rate);
  }
  static Distribution checked(const Asked& asked, double rate);
};
struct DrawGeometric {
  Distribution operator()(const Asked& asked, double p, const auto&...) const { return checked(asked, p); }
  static Distribution checked(const Asked& asked, double p);
};
struct DrawBernoulli {
  Distribution operator()(const Asked& asked, double p, const auto&...) const { return checked(asked, p); }
  static Distribution checked(const Asked& asked, double p);
};

// random_: from the first to the last integer that is asked for, or that the type can hold.
struct DrawIntegers {
  Distribution operator()(const Asked& asked, const auto&...) const {
    return checked(asked, 0, std::nullopt);
  }
  Distribution operator()(const Asked& asked, std::int64_t to, const auto&...) const {
    return checked(asked, 0, to);
  }
  Distribution operator()(const Asked& asked, std::int64_t from, const std::optional<std::int64_t>& to,
                          const auto&...) const {
    return checked(asked, from, to);
  }
  static Distribution checked(const Asked& asked, std::int64_t from, std::optional<std::int64_t> to);
};
// randint_like: below a number, or between two.
struct DrawBelow {
  Distribution operator()(const Asked& asked, const c10::SymInt& high, const auto&...) const {
    return DrawIntegers::checked(asked, 0, high.expect_int());
  }
  Distribution operator()(const Asked& asked, const c10::SymInt& low, const c10::SymInt& high,
                          const auto&...) const {
    return DrawIntegers::checked(asked, low.expect_int(), high.expect_int());
  }
  Distribution operator()(const Asked& asked, const at::Tensor& high, const auto&...) const {
    return DrawIntegers::checked(asked, 0, high.item().toLong());
  }
};
struct DrawUnit {  // rand_like
  Distribution operator()(const Asked& asked, const auto&...) const {
    return DrawUniform::checked(asked, 0, 1);
  }
};
struct DrawStandardNormal {  // randn_like
  Distribution operator()(const Asked& asked, const auto&...) const {
    return DrawNormal::checked(asked, 0, 1);
  }
};

// A probability is from 0 to 1, a deviation not negative.
void check_probability(const Asked& asked, double p);
void check_probabilities(const char* op, const char* argument, const at::Tensor& given);
void check_deviation(const Asked& asked, double deviation);

}  // namespace meshtorch

// What random operators draw, from their own arguments: each distribution checks the numbers it is asked
// with.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/distribution.h"

namespace meshtorch::internal {

// Who asks for random numbers, for messages, and the type that they will have.
struct Asked {
  const char* op;
  at::ScalarType type;
};

// Distributions of one and of two numbers, which the function checks.
Distribution checked_uniform(const Asked& asked, double from, double to);
Distribution checked_normal(const Asked& asked, double mean, double deviation);
Distribution checked_log_normal(const Asked& asked, double mean, double deviation);
Distribution checked_cauchy(const Asked& asked, double median, double sigma);
Distribution checked_exponential(const Asked& asked, double rate);
Distribution checked_geometric(const Asked& asked, double p);
Distribution checked_bernoulli(const Asked& asked, double p);

// What a family of operators draws. What they take besides (a generator, options of the new tensor) is passed
// too, and does not matter here.
template <auto checked>
struct DrawByOne {
  Distribution operator()(const Asked& asked, double number, const auto&...) const {
    return checked(asked, number);
  }
};
template <auto checked>
struct DrawByTwo {
  Distribution operator()(const Asked& asked, double first, double second, const auto&...) const {
    return checked(asked, first, second);
  }
};
using DrawUniform = DrawByTwo<checked_uniform>;
using DrawNormal = DrawByTwo<checked_normal>;
using DrawLogNormal = DrawByTwo<checked_log_normal>;
using DrawCauchy = DrawByTwo<checked_cauchy>;
using DrawExponential = DrawByOne<checked_exponential>;
using DrawGeometric = DrawByOne<checked_geometric>;
using DrawBernoulli = DrawByOne<checked_bernoulli>;

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
  Distribution operator()(const Asked& asked, const auto&...) const { return checked_uniform(asked, 0, 1); }
};
struct DrawStandardNormal {  // randn_like
  Distribution operator()(const Asked& asked, const auto&...) const { return checked_normal(asked, 0, 1); }
};

// A probability is from 0 to 1, a deviation not negative.
void check_probability(const Asked& asked, double p);
void check_probabilities(const char* op, const char* argument, const at::Tensor& given);
void check_deviation(const Asked& asked, double deviation);

}  // namespace meshtorch::internal

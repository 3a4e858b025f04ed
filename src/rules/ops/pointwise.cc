// Rules of pointwise operators: an element of the result comes from that element of each operand.
#include "rules/table.h"

namespace meshtorch::internal {
namespace {

constexpr bool kOfFloats = true;

// Of equal order before and after: the largest stays the largest.
std::vector<KeptReduction> keeps_order() {
  return {{ReduceOp::min, ReduceOp::min}, {ReduceOp::max, ReduceOp::max}};
}

// Of the opposite order: what was the largest is the smallest.
std::vector<KeptReduction> turns_order() {
  return {{ReduceOp::min, ReduceOp::max}, {ReduceOp::max, ReduceOp::min}};
}

// Of equal order in that operand, whatever the others are: these are whole.
std::vector<KeptReduction> keeps_order_in(std::initializer_list<int> operands) {
  std::vector<KeptReduction> kept;
  for (const int operand : operands) {
    kept.push_back({ReduceOp::min, ReduceOp::min, operand});
    kept.push_back({ReduceOp::max, ReduceOp::max, operand});
  }
  return kept;
}

// The larger of two, or the smaller: of what is pending so in both, too.
std::vector<KeptReduction> chooses_by(ReduceOp op) {
  std::vector<KeptReduction> kept = keeps_order_in({0, 1});
  kept.push_back({op, op});
  return kept;
}

// A cast to whole numbers or to bool does not commute with a sum. Numbers of c10::ScalarType.
bool keeps_sums(std::int64_t dtype) {
  constexpr std::int64_t kHalf = 5, kComplexDouble = 10, kBFloat16 = 15;
  return (dtype >= kHalf && dtype <= kComplexDouble) || dtype == kBFloat16;
}

bool is_complex(std::int64_t dtype) {
  constexpr std::int64_t kComplexHalf = 8, kComplexDouble = 10;
  return dtype >= kComplexHalf && dtype <= kComplexDouble;
}

// One to real numbers of any kind keeps their order; there is none among complex ones.
RuleUse to_copy(const OpArguments& call) {
  if (!call.has("dtype")) return {.rule = "*... -> ...", .kept = keeps_any()};
  if (!keeps_sums(call.integer("dtype"))) return {"... -> ..."};
  RuleUse use{"*... -> ..."};
  if (!is_complex(call.integer("dtype"))) use.kept = keeps_order();
  return use;
}

// Terms that are divided by zero are infinite and do not add up to the quotient of their sum: only a number
// that is another one, or many of which decompose/reduce.cc has seen that they are, are sure to keep it.
RuleUse divide(const OpArguments& call) {
  if (call.is_nonzero_number("other")) return {"*..., ... -> ..."};
  return {"..., ... -> ..."};
}

RuleUse divide_by_number(const OpArguments& call) {
  if (call.is_nonzero_number("other")) return {"*... -> ..."};
  return {"... -> ..."};
}

void add_linear(RuleTable& ops) {
  ops.add({"clone", "alias", "alias_copy", "detach", "detach_copy", "lift", "lift_fresh", "lift_fresh_copy",
           "_lazy_clone"},
          "*... -> ...", keeps_any());
  ops.add({"neg", "_neg_view", "_neg_view_copy"}, "*... -> ...",
          {{ReduceOp::min, ReduceOp::max, -1, kOfFloats}, {ReduceOp::max, ReduceOp::min, -1, kOfFloats}});
  ops.add({"deg2rad", "rad2deg"}, "*... -> ...", keeps_order());
  ops.add({"_conj", "_conj_copy", "_conj_physical", "mul.Scalar"}, "*... -> ...");
  ops.choose("_to_copy", to_copy);

  // The same number added everywhere changes no order.
  ops.add({"add.Tensor", "sub.Tensor"}, "+..., +... -> ...",
          {{ReduceOp::min, ReduceOp::min, 0, kOfFloats}, {ReduceOp::max, ReduceOp::max, 0, kOfFloats}});
  ops.add({"rsub.Tensor", "lerp.Scalar", "complex"}, "+..., +... -> ...");
  ops.add("lerp.Tensor", "+..., +..., ... -> ...");
  ops.add("where.self", "..., +..., +... -> ...");
  ops.add("mul.Tensor", "*..., *... -> ...");
  ops.add("ldexp.Tensor", "*..., ... -> ...");
  ops.choose("div.Tensor", divide);
  ops.choose("div.Scalar", divide_by_number);
  ops.add("addcmul", "+..., *..., *... -> ...");
  ops.add("addcdiv", "..., ..., ... -> ...");
}

void add_unary(RuleTable& ops) {
  ops.add({"abs",    "angle",   "signbit",   "frac",     "reciprocal",  "sqrt",       "rsqrt",
           "log",    "log2",    "log10",     "log1p",    "sin",         "cos",        "tan",
           "asin",   "acos",    "cosh",      "acosh",    "atanh",       "sinc",       "erfinv",
           "lgamma", "digamma", "polygamma", "mvlgamma", "i0",          "logit",      "nan_to_num",
           "isnan",  "isinf",   "isposinf",  "isneginf", "bitwise_not", "logical_not"},
          "... -> ...");
  ops.add(
      {"special_airy_ai", "special_bessel_j0", "special_bessel_j1", "special_bessel_y0", "special_bessel_y1",
       "special_entr", "special_i0e", "special_i1", "special_i1e", "special_log_ndtr",
       "special_modified_bessel_i0", "special_modified_bessel_i1", "special_modified_bessel_k0",
       "special_modified_bessel_k1", "special_ndtri", "special_scaled_modified_bessel_k0",
       "special_scaled_modified_bessel_k1", "special_spherical_bessel_j0"},
      "... -> ...");
  ops.add("frexp.Tensor", "... -> ..., ...");
  // Of all numbers, so that no term of a pending maximum is outside of what they take.
  ops.add({"ceil", "floor", "trunc", "round", "round.decimals", "sgn", "sign", "exp", "exp2", "expm1", "atan",
           "sinh", "tanh", "asinh", "erf", "sigmoid"},
          "... -> ...", keeps_order());
  ops.add({"erfc", "special_erfcx"}, "... -> ...", turns_order());
}

// One tensor and numbers. A number added to a pending sum would be added once on each rank.
void add_with_scalar(RuleTable& ops) {
  ops.add({"add.Scalar", "sub.Scalar"}, "... -> ...",
          {{ReduceOp::min, ReduceOp::min, -1, kOfFloats},
           {ReduceOp::max, ReduceOp::max, -1, kOfFloats},
           {ReduceOp::avg, ReduceOp::avg, -1, kOfFloats}});
  ops.add({"clamp", "clamp_min", "clamp_max"}, "... -> ...", keeps_order());
  ops.add({"rsub.Scalar",
           "_add_relu.Scalar",
           "div.Scalar_mode",
           "floor_divide.Scalar",
           "fmod.Scalar",
           "remainder.Scalar",
           "remainder.Scalar_Tensor",
           "pow.Scalar",
           "pow.Tensor_Scalar",
           "copysign.Scalar",
           "xlogy.Scalar_Other",
           "xlogy.Scalar_Self",
           "eq.Scalar",
           "ne.Scalar",
           "lt.Scalar",
           "le.Scalar",
           "gt.Scalar",
           "ge.Scalar",
           "isin.Tensor_Scalar",
           "bitwise_and.Scalar",
           "bitwise_and.Scalar_Tensor",
           "bitwise_or.Scalar",
           "bitwise_or.Scalar_Tensor",
           "bitwise_xor.Scalar",
           "bitwise_xor.Scalar_Tensor",
           "bitwise_left_shift.Scalar_Tensor",
           "bitwise_left_shift.Tensor_Scalar",
           "bitwise_right_shift.Scalar_Tensor",
           "bitwise_right_shift.Tensor_Scalar",
           "__lshift__.Scalar",
           "__rshift__.Scalar"},
          "... -> ...");
  ops.add({"special_chebyshev_polynomial_t.n_scalar",
           "special_chebyshev_polynomial_t.x_scalar",
           "special_chebyshev_polynomial_u.n_scalar",
           "special_chebyshev_polynomial_u.x_scalar",
           "special_chebyshev_polynomial_v.n_scalar",
           "special_chebyshev_polynomial_v.x_scalar",
           "special_chebyshev_polynomial_w.n_scalar",
           "special_chebyshev_polynomial_w.x_scalar",
           "special_hermite_polynomial_h.n_scalar",
           "special_hermite_polynomial_h.x_scalar",
           "special_hermite_polynomial_he.n_scalar",
           "special_hermite_polynomial_he.x_scalar",
           "special_laguerre_polynomial_l.n_scalar",
           "special_laguerre_polynomial_l.x_scalar",
           "special_legendre_polynomial_p.n_scalar",
           "special_legendre_polynomial_p.x_scalar",
           "special_shifted_chebyshev_polynomial_t.n_scalar",
           "special_shifted_chebyshev_polynomial_t.x_scalar",
           "special_shifted_chebyshev_polynomial_u.n_scalar",
           "special_shifted_chebyshev_polynomial_u.x_scalar",
           "special_shifted_chebyshev_polynomial_v.n_scalar",
           "special_shifted_chebyshev_polynomial_v.x_scalar",
           "special_shifted_chebyshev_polynomial_w.n_scalar",
           "special_shifted_chebyshev_polynomial_w.x_scalar",
           "special_xlog1py.other_scalar",
           "special_xlog1py.self_scalar",
           "special_zeta.other_scalar",
           "special_zeta.self_scalar"},
          "... -> ...");
}

void add_binary(RuleTable& ops) {
  ops.add({"_add_relu.Tensor",
           "div.Tensor_mode",
           "floor_divide",
           "fmod.Tensor",
           "remainder.Tensor",
           "pow.Tensor_Tensor",
           "atan2",
           "hypot",
           "copysign.Tensor",
           "nextafter",
           "heaviside",
           "gcd",
           "lcm",
           "igamma",
           "igammac",
           "xlogy.Tensor",
           "eq.Tensor",
           "ne.Tensor",
           "lt.Tensor",
           "le.Tensor",
           "gt.Tensor",
           "ge.Tensor",
           "logical_and",
           "logical_or",
           "logical_xor",
           "bitwise_and.Tensor",
           "bitwise_or.Tensor",
           "bitwise_xor.Tensor",
           "bitwise_left_shift.Tensor",
           "bitwise_right_shift.Tensor",
           "__lshift__.Tensor",
           "__rshift__.Tensor",
           "polar",
           "_standard_gamma_grad",
           "_prelu_kernel"},
          "..., ... -> ...");
  ops.add({"special_chebyshev_polynomial_t", "special_chebyshev_polynomial_u",
           "special_chebyshev_polynomial_v", "special_chebyshev_polynomial_w", "special_hermite_polynomial_h",
           "special_hermite_polynomial_he", "special_laguerre_polynomial_l", "special_legendre_polynomial_p",
           "special_shifted_chebyshev_polynomial_t", "special_shifted_chebyshev_polynomial_u",
           "special_shifted_chebyshev_polynomial_v", "special_shifted_chebyshev_polynomial_w",
           "special_xlog1py", "special_zeta"},
          "..., ... -> ...");
  ops.add({"maximum", "fmax", "clamp_min.Tensor"}, "..., ... -> ...", chooses_by(ReduceOp::max));
  ops.add({"minimum", "fmin", "clamp_max.Tensor"}, "..., ... -> ...", chooses_by(ReduceOp::min));
  ops.add({"logaddexp", "logaddexp2"}, "..., ... -> ...", keeps_order_in({0, 1}));
  // The same number everywhere is its own maximum, minimum and average.
  ops.add("masked_fill.Scalar", "..., ... -> ...")
      .keeps({{ReduceOp::min, ReduceOp::min, 0},
              {ReduceOp::max, ReduceOp::max, 0},
              {ReduceOp::avg, ReduceOp::avg, 0}});
  ops.add({"_dirichlet_grad", "masked_fill.Tensor"}, "..., ..., ... -> ...");
  ops.add("clamp.Tensor", "..., ...?, ...? -> ...").keeps(keeps_order_in({0}));
}

void add_activations(RuleTable& ops) {
  ops.add({"leaky_relu", "elu", "celu", "gelu", "silu", "mish", "softplus", "threshold", "hardswish"},
          "... -> ...");
  ops.add({"relu", "hardtanh", "hardsigmoid", "hardshrink", "softshrink"}, "... -> ...", keeps_order());
  ops.add("log_sigmoid_forward", "... -> ..., ...");
  ops.add("glu", "a.. s! b.. -> a.. _ b..").at("s", "dim");

  // Linear in the first operand, the gradient.
  ops.add({"threshold_backward", "leaky_relu_backward", "elu_backward", "gelu_backward", "silu_backward",
           "mish_backward", "softplus_backward", "hardtanh_backward", "hardsigmoid_backward",
           "hardswish_backward", "hardshrink_backward", "softshrink_backward", "sigmoid_backward",
           "tanh_backward", "native_dropout_backward"},
          "*..., ... -> ...");
  ops.add("logit_backward", "..., ... -> ...");  // divides by what may be zero
  ops.add({"log_sigmoid_backward", "rrelu_with_noise_backward"}, "*..., ..., ... -> ...");
  ops.add("_prelu_kernel_backward", "*..., ..., ... -> ..., ...");
  ops.add("glu_backward", "*a.. h! b.., a.. s! b.. -> a.. s! b..").at("s", "dim");
}

// What is written over does not matter. A cast may hide in the copy, so that sums are not kept.
void add_overwriting(RuleTable& ops) {
  ops.add("copy", "..., ... -> ...").shape_only("self");
  ops.add("fill.Scalar", "... -> ...").shape_only("self");
  ops.add("fill.Tensor", "..., ... -> ...").shape_only("self");
  ops.add("zero", "*... -> ...").shape_only("self").keeps(keeps_any());
}

}  // namespace

void add_pointwise_rules(RuleTable& ops) {
  add_linear(ops);
  add_unary(ops);
  add_with_scalar(ops);
  add_binary(ops);
  add_activations(ops);
  add_overwriting(ops);
}

}  // namespace meshtorch::internal

// Runs compared: shapes, types and numbers, as far as rounding lets them agree.
#include "compare_runs.h"

#include "numbers.h"

namespace meshtorch::testing {
namespace {

using torch::Tensor;

// In the type of the numbers: those of half precision lie apart by more.
double small_in(double allowed) { return std::max(2e-3, 10 * allowed); }

// Memory that nobody wrote: only shapes and types are defined.
bool has_undefined_contents(const Call& call) {
  const std::string name = call.name();
  return name.find("empty") != std::string::npos || name.starts_with("resize");
}

double tolerance(at::ScalarType type) {
  switch (at::toRealValueType(type)) {
    case at::kHalf:
      return 1e-2;
    case at::kBFloat16:
      return 5e-2;
    case at::kFloat:
      return 2e-5;
    default:
      return 1e-9;
  }
}

// How far two tensors may lie apart. `least`: what they were made of had no more precision than that.
struct Comparison {
  bool with_contents;
  bool has_pending = false;  // among what was given
  double least = 0;
};

// The largest number of a tensor; 0 where there is none.
double largest_of(const Tensor& t) {
  if (!t.defined() || t.numel() == 0) return 0;
  const Tensor sizes = t.abs().to(at::kDouble);
  return torch::where(sizes.isfinite(), sizes, 0.0).max().item<double>();
}

bool has_partial(const mt::Placements& placements) {
  return std::ranges::any_of(placements, [](const mt::Placement& p) { return p.is_partial(); });
}

// Terms that add up to a small number may be as large as the largest of the result, or larger, and each is
// rounded as that is: a factor of 1e32 leaves 1e16 of terms whose sum is zero.
bool is_close_to_terms(const Tensor& actual, const Tensor& wanted) {
  return wanted.scalar_type() == at::kDouble &&
         torch::allclose(actual, wanted, tolerance(at::kDouble), 1e-11 * largest_of(wanted),
                         /*equal_nan=*/true);
}

// Whether they lie no further apart than last digits of what was given `moved` the expected one.
bool is_close_as_moved(const Tensor& actual, const Tensor& wanted, const Tensor& moved) {
  constexpr double kRoundings = 10;
  if (!moved.defined()) return false;
  const auto type = wanted.is_complex() ? at::kComplexDouble : at::kDouble;
  return torch::allclose(actual.to(type), wanted.to(type), tolerance(at::kDouble),
                         kRoundings * largest_of(moved),
                         /*equal_nan=*/true);
}

void compare(const std::string& what, const Tensor& actual, const Tensor& expected, const Tensor& moved,
             Comparison comparison) {
  if (!expected.defined() && !actual.defined()) return;
  if (expected.defined() != actual.defined())
    throw Mismatch(what + (actual.defined() ? " is defined, expected undefined" : " is undefined"));
  if (actual.sizes() != expected.sizes())
    throw Mismatch(c10::str(what, " has shape ", actual.sizes(), ", expected ", expected.sizes()));
  if (actual.scalar_type() != expected.scalar_type())
    throw Mismatch(c10::str(what, " is ", actual.scalar_type(), ", expected ", expected.scalar_type()));
  if (!mt::is_dtensor(actual)) throw Mismatch(what + " is plain");
  const Tensor whole = mt::DTensor(actual).full_tensor().detach();
  if (!comparison.with_contents) return;
  const double allowed = std::max(comparison.least, tolerance(whole.scalar_type()));
  Tensor wanted = expected.detach().resolve_conj().resolve_neg();
  // The one limit of pending sums (docs/architecture.md): infinite factors make opposite infinities of the
  // terms, whether they were reduced since or not.
  const bool is_pending = comparison.has_pending || has_partial(mt::DTensor(actual).placements());
  if (is_pending && (wanted.is_floating_point() || wanted.is_complex()))
    wanted = torch::where(wanted.isinf().logical_and(whole.isnan()), torch::full_like(wanted, NAN), wanted);
  const auto same = is_close(whole.resolve_conj().resolve_neg(), wanted, allowed);
  if (same || (is_pending && is_close_to_terms(whole, wanted)) || is_close_as_moved(whole, wanted, moved))
    return;
  throw Mismatch(c10::str(what, " ", mt::to_string(mt::DTensor(actual).placements()), ": ", same.message()),
                 bool(is_close(whole.resolve_conj().resolve_neg(), wanted, small_in(allowed))));
}

void compare(const std::string& what, const std::vector<Tensor>& actual, const std::vector<Tensor>& expected,
             const std::vector<Tensor>& moved, Comparison comparison) {
  for (std::size_t i = 0; i < expected.size(); ++i)
    compare(c10::str(what, " ", i), actual[i], expected[i], moved.empty() ? Tensor() : moved[i], comparison);
}

// A gradient of double numbers may have come through halves: those of another argument, or of a result.
double precision_on_the_way(const Run& run) {
  double least = 0;
  for (const Tensor& t : run.arguments) {
    if (is_differentiable(t)) least = std::max(least, tolerance(t.scalar_type()));
  }
  for (const c10::IValue& result : run.results) {
    if (result.isTensor() && is_differentiable(result.toTensor()))
      least = std::max(least, tolerance(result.toTensor().scalar_type()));
  }
  return least;
}

// What is written to a tensor of a wider type was computed in that of the operands.
double precision_of_operands(const Call& call, const Run& run) {
  if (!writes_out(call)) return 0;
  double least = 0;
  const std::vector<std::size_t> argument = call.arguments_of_tensors();
  for (std::size_t i = 0; i < argument.size(); ++i) {
    const Tensor& t = run.arguments[i];
    if (!call.op.schema().arguments()[argument[i]].is_out() && is_differentiable(t))
      least = std::max(least, tolerance(t.scalar_type()));
  }
  return least;
}

}  // namespace

bool is_differentiable(const Tensor& t) { return t.defined() && (t.is_floating_point() || t.is_complex()); }

bool writes_out(const Call& call) {
  const auto& arguments = call.op.schema().arguments();
  return std::any_of(arguments.begin(), arguments.end(),
                     [](const c10::Argument& a) { return is_written(a) && (a.is_out() || a.kwarg_only()); });
}

void compare_runs(const PlacedCall& placed, const Run& actual, const Run& expected) {
  const Moves moved = expected.moves ? *expected.moves : Moves();
  const bool has_pending = std::ranges::any_of(placed.placements, has_partial) ||
                           std::ranges::any_of(placed.incoming, has_partial);
  const Comparison comparison{!has_undefined_contents(placed.call), has_pending,
                              precision_of_operands(placed.call, expected)};
  if (actual.results.size() != expected.results.size())
    throw Mismatch(c10::str(actual.results.size(), " results, expected ", expected.results.size()));
  for (std::size_t i = 0; i < expected.results.size(); ++i) {
    const c10::IValue& a = actual.results[i];
    const c10::IValue& e = expected.results[i];
    if (a.isTensor() && e.isTensor()) {
      compare(c10::str("result ", i), a.toTensor(), e.toTensor(),
              moved.results.empty() ? Tensor() : moved.results[i], comparison);
    } else if (a.tagKind() != e.tagKind() ||
               (e.isDouble() ? std::abs(a.toDouble() - e.toDouble()) > 1e-9 && !std::isnan(e.toDouble())
                             : !e.isNone() && !(a == e))) {
      throw Mismatch(c10::str("result ", i, " is ", a, ", expected ", e));
    }
  }
  compare("argument", actual.arguments, expected.arguments, moved.arguments, comparison);
  if (actual.is_differentiated != expected.is_differentiated)
    throw Mismatch(actual.is_differentiated ? "has a gradient, expected none" : "has no gradient");
  compare("gradient", actual.gradients, expected.gradients, moved.gradients,
          {comparison.with_contents, has_pending, precision_on_the_way(expected)});
}

}  // namespace meshtorch::testing

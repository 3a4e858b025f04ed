// Placed calls: run, compared, judged.
#include "placed_call.h"

#include <ATen/core/enum_tag.h>
#include <c10/util/Exception.h>

#include <condition_variable>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "numbers.h"

namespace meshtorch::testing {
namespace {

using torch::Tensor;

constexpr std::chrono::milliseconds kLimit = std::chrono::seconds(10);
constexpr std::uint64_t kSeed = 11;  // of random operators

// What the test found, in contrast to what an operator threw.
struct Mismatch : std::runtime_error {
  explicit Mismatch(const std::string& what, bool is_little = false)
      : std::runtime_error(what), is_small(is_little) {}
  bool is_small;  // numbers that lie apart, but not far
};
// In the type of the numbers: those of half precision lie apart by more.
double small_in(double allowed) { return std::max(2e-3, 10 * allowed); }

class Silence : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

bool is_random(const Call& call) { return call.op.hasTag(at::Tag::nondeterministic_seeded); }

// Memory that nobody wrote: only shapes and types are defined.
bool has_undefined_contents(const Call& call) {
  const std::string name = call.name();
  return name.find("empty") != std::string::npos || name.starts_with("resize");
}

bool is_differentiable(const Tensor& t) { return t.defined() && (t.is_floating_point() || t.is_complex()); }

void append(std::vector<c10::IValue>& flat, const c10::IValue& value) {
  if (value.isTensorList()) {
    for (const Tensor& t : value.toTensorVector()) flat.emplace_back(t);
  } else if (value.isList() || value.isTuple()) {
    for (const c10::IValue& item :
         value.isTuple() ? value.toTupleRef().elements().vec() : value.toListRef().vec())
      append(flat, item);
  } else {
    flat.push_back(value);
  }
}

using Place = std::function<Tensor(const Tensor&, std::size_t index)>;

void differentiate(Run& done, const std::vector<Tensor>& leaves, const Place& as_gradient) {
  std::vector<Tensor> outputs;
  std::vector<Tensor> weights;
  for (const c10::IValue& result : done.results) {
    if (!result.isTensor() || !result.toTensor().requires_grad()) continue;
    const Tensor& t = result.toTensor();
    outputs.push_back(t);
    done.incoming.push_back(numbers(t.sizes(), t.scalar_type(), 7));
    weights.push_back(as_gradient(done.incoming.back(), weights.size()));
  }
  if (outputs.empty() || leaves.empty()) return;
  done.gradients = torch::autograd::grad(outputs, leaves, weights, {}, false, /*allow_unused=*/true);
  done.is_differentiated = true;
}

Run run_call(const Call& call, bool with_gradients, const Place& place, const Place& as_gradient) {
  const c10::OperatorHandle& op = call.op;
  std::vector<Tensor> given = call.tensors();
  std::vector<Tensor> leaves;
  const std::vector<std::size_t> argument = call.arguments_of_tensors();
  for (std::size_t i = 0; i < given.size(); ++i) {
    Tensor& t = given[i];
    t = place(t, i);
    if (!with_gradients || !is_differentiable(t)) continue;
    leaves.push_back(t.detach().requires_grad_());
    // A leaf must not be written.
    t = is_written(op.schema().arguments()[argument[i]]) ? leaves.back().clone() : leaves.back();
  }
  Run done;
  torch::jit::Stack stack = call.stack(given);
  op.callBoxed(&stack);
  for (const c10::IValue& value : stack) append(done.results, value);
  for (const Tensor& t : given) done.arguments.push_back(t.detach());
  if (with_gradients) differentiate(done, leaves, as_gradient);
  return done;
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

bool has_partial(const mt::Placements& placements) {
  return std::ranges::any_of(placements, [](const mt::Placement& p) { return p.is_partial(); });
}

// Terms that add up to a small number may be as large as the largest of the result, or larger, and each is
// rounded as that is: a factor of 1e32 leaves 1e16 of terms whose sum is zero.
bool is_close_to_terms(const Tensor& actual, const Tensor& wanted) {
  if (wanted.scalar_type() != at::kDouble || wanted.numel() == 0) return false;
  const double largest = torch::where(wanted.isfinite(), wanted.abs(), 0.0).max().item<double>();
  return torch::allclose(actual, wanted, tolerance(at::kDouble), 1e-11 * largest, /*equal_nan=*/true);
}

void compare(const std::string& what, const Tensor& actual, const Tensor& expected, Comparison comparison) {
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
  if (!same && is_pending && is_close_to_terms(whole, wanted)) return;
  if (!same)
    throw Mismatch(c10::str(what, " ", mt::to_string(mt::DTensor(actual).placements()), ": ", same.message()),
                   bool(is_close(whole.resolve_conj().resolve_neg(), wanted, small_in(allowed))));
}

void compare(const std::string& what, const std::vector<Tensor>& actual, const std::vector<Tensor>& expected,
             Comparison comparison) {
  for (std::size_t i = 0; i < expected.size(); ++i)
    compare(c10::str(what, " ", i), actual[i], expected[i], comparison);
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

// Autograd has no part in what is written to a tensor that was passed for it.
bool writes_out(const Call& call) {
  const auto& arguments = call.op.schema().arguments();
  return std::any_of(arguments.begin(), arguments.end(),
                     [](const c10::Argument& a) { return is_written(a) && (a.is_out() || a.kwarg_only()); });
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

void compare(const PlacedCall& placed, const Run& actual, const Run& expected) {
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
      compare(c10::str("result ", i), a.toTensor(), e.toTensor(), comparison);
    } else if (a.tagKind() != e.tagKind() ||
               (e.isDouble() ? std::abs(a.toDouble() - e.toDouble()) > 1e-9 && !std::isnan(e.toDouble())
                             : !e.isNone() && !(a == e))) {
      throw Mismatch(c10::str("result ", i, " is ", a, ", expected ", e));
    }
  }
  compare("argument", actual.arguments, expected.arguments, comparison);
  if (actual.is_differentiated != expected.is_differentiated)
    throw Mismatch(actual.is_differentiated ? "has a gradient, expected none" : "has no gradient");
  compare("gradient", actual.gradients, expected.gradients,
          {comparison.with_contents, has_pending, precision_on_the_way(expected)});
}

// Under a debugger's flag: each call before it runs, so that the last line names the one that crashed.
void trace(const std::string& call) {
  static const char* const path = std::getenv("MESHTORCH_PROPERTY_TRACE");
  if (path != nullptr) std::ofstream(path, std::ios::app) << call << std::endl;
}

// Where ranks that threw wait for the others, so that none is stopped that would have thrown by itself.
class Assembly {
 public:
  explicit Assembly(std::size_t count) : missing_(count) {}

  void arrive(bool waits) {
    std::unique_lock lock(mutex_);
    --missing_;
    changed_.notify_all();
    if (waits) changed_.wait_for(lock, std::chrono::seconds(1), [&] { return missing_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t missing_;
};

// ---- ranks ----

struct RankReport {
  std::string wrong;
  bool is_small = false;
  std::string thrown;
};

std::string message_of(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
}

std::vector<RankReport> run_on_ranks(const PlacedCall& placed, const Run& expected, const OtherRun& other) {
  const int n = static_cast<int>(c10::multiply_integers(placed.mesh));
  std::vector<RankReport> reports(static_cast<std::size_t>(n));
  Assembly assembly(reports.size());
  const auto body = [&](int rank) {
    Silence silence;
    const c10::WarningUtils::WarningHandlerGuard guard(&silence);
    RankReport& report = reports[static_cast<std::size_t>(rank)];
    // What is caught goes on to stop the other ranks.
    try {
      const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, placed.mesh);
      run_on_rank(placed, mesh, expected);
      PlacedCall again = placed;
      again.call = other.call;
      run_on_rank(again, mesh, other.expected);
      assembly.arrive(false);
    } catch (const Mismatch& mismatch) {
      report.wrong = mismatch.what();
      report.is_small = mismatch.is_small;
      throw;
    } catch (const std::exception& error) {
      report.thrown = message_of(error);
      assembly.arrive(true);
      throw;
    }
  };
  try {
    mt::spawn(n, body, {.timeout = kLimit, .intra_op_threads = 1});
  } catch (const mt::RankError&) {  // it is in the reports
  }
  return reports;
}

bool waited_for_others(const std::string& error) {
  return error.find("a collective cannot complete") != std::string::npos ||
         error.find("a collective did not complete") != std::string::npos ||
         error.find("disagree on a collective") != std::string::npos;
}

Verdict verdict_of(const std::vector<RankReport>& reports) {
  for (const RankReport& report : reports) {
    if (report.wrong.empty()) continue;
    const bool are_small =
        std::ranges::all_of(reports, [](const RankReport& r) { return r.wrong.empty() || r.is_small; });
    return {Verdict::Kind::wrong, report.wrong, false, are_small};
  }
  std::string first;
  bool all_threw = true;
  bool alone = false;
  for (const RankReport& report : reports) {
    alone |= waited_for_others(report.thrown);
    all_threw &= !report.thrown.empty();
    if (!report.thrown.empty() && (first.empty() || waited_for_others(first))) first = report.thrown;
  }
  if (first.empty()) return {};
  if (all_threw && !alone) return {Verdict::Kind::refused, first};
  return {Verdict::Kind::wrong, "threw on some ranks only: " + first};
}

bool lacks_a_rule(const std::string& error) {
  return error.find("has no rule, and the fallback policy is error") != std::string::npos;
}

// ---- text ----

std::string to_text(const mt::Placement& p) {
  if (p.is_replicate()) return "R";
  return p.is_partial() ? "P" : p.to_string();
}

mt::Placement placement_of(const std::string& text) {
  if (text == "R") return mt::Replicate();
  if (text == "P") return mt::Partial();
  return mt::Shard(std::stoll(text.substr(2)));
}

// "S(0) R, P R": a tensor each between the commas.
std::string to_text(const std::vector<mt::Placements>& tensors) {
  std::string text;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (i > 0) text += ",";
    for (const mt::Placement& p : tensors[i]) text += " " + to_text(p);
  }
  return text;
}

std::vector<mt::Placements> placements_in(const std::string& text) {
  std::vector<mt::Placements> all;
  std::istringstream tensors(text);
  for (std::string tensor; std::getline(tensors, tensor, ',');) {
    all.emplace_back();
    std::istringstream axes(tensor);
    for (std::string axis; axes >> axis;) all.back().push_back(placement_of(axis));
  }
  return all;
}

}  // namespace

Tensor placed_tensor(const Tensor& whole, const mt::DeviceMesh& mesh, const mt::Placements& placements) {
  Tensor local = whole;
  mt::Placements without_terms = placements;
  for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
    mt::Placement& p = without_terms[static_cast<std::size_t>(axis)];
    if (!p.is_partial()) continue;
    p = mt::Replicate();
    const int64_t index = mesh.get_local_rank(axis);
    const int64_t count = mesh.size(axis);
    // All terms but the last are small exact numbers, so that they add up to the tensor without rounding.
    const auto term = [&](int64_t i) {
      return numbers(whole.sizes(), whole.scalar_type(), 40 + 8 * axis + i);
    };
    const Tensor before = local;
    local = index + 1 < count ? term(index) : before.clone();
    for (int64_t i = 0; index + 1 == count && i + 1 < count; ++i) local -= term(i);
  }
  const mt::DTensor split =
      mt::distribute_tensor(local, mesh, without_terms, {.src_data_rank = std::nullopt});
  return mt::DTensor::from_local(split.to_local(), mesh, placements, {.shape = whole.sizes().vec()}).detach();
}

std::optional<Run> plain_run(const Call& call, Before in_outputs) {
  trace(call.to_string());
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard guard(&silence);
  const std::vector<std::size_t> argument = call.arguments_of_tensors();
  const auto as_it_is = [](const Tensor& t, std::size_t) { return t; };
  const auto with_contents = [&](const Tensor& t, std::size_t i) {
    const bool is_output = call.op.schema().arguments()[argument[i]].is_out();
    if (in_outputs == Before::numbers || !is_output || !t.defined()) return t;
    return t.scalar_type() == at::kBool ? t.logical_not() : t + 1;
  };
  std::optional<Run> run;
  for (const bool with_gradients : {false, true}) {
    if (with_gradients && writes_out(call)) break;
    try {
      run = run_call(call, with_gradients, with_contents, as_it_is);
    } catch (const std::exception&) {
      break;
    }
  }
  if (!run || !is_random(call)) return run;
  const bool with_gradients = run->is_differentiated;
  try {
    mt::spawn(1, [&](int) {
      const c10::WarningUtils::WarningHandlerGuard rank_guard(&silence);
      const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {1});
      mt::manual_seed(kSeed);
      const auto on_one = [&](const Tensor& t, std::size_t) {
        return placed_tensor(t, mesh, {mt::Replicate()});
      };
      Run here = run_call(call, with_gradients, on_one, on_one);
      const auto whole = [](const Tensor& t) {
        return t.defined() && mt::is_dtensor(t) ? mt::DTensor(t).full_tensor().detach() : t;
      };
      for (c10::IValue& result : here.results) {
        if (result.isTensor()) result = whole(result.toTensor());
      }
      for (Tensor& t : here.arguments) t = whole(t);
      for (Tensor& t : here.gradients) t = whole(t);
      run = std::move(here);
    });
  } catch (const mt::RankError&) {  // the distributed call will be refused
  }
  return run;
}

OtherRun with_other_numbers(const Call& call, const Run& expected) {
  OtherRun other{call, expected};
  ++other.call.data;
  auto run = plain_run(other.call);
  if (!run || run->is_differentiated != expected.is_differentiated) return {call, expected};
  other.expected = *std::move(run);
  return other;
}

void run_on_rank(const PlacedCall& placed, const mt::DeviceMesh& mesh, const Run& expected) {
  if (is_random(placed.call)) mt::manual_seed(kSeed);
  const mt::Placements whole(static_cast<std::size_t>(mesh.ndim()), mt::Replicate());
  const Run actual = run_call(
      placed.call, expected.is_differentiated,
      [&](const Tensor& t, std::size_t i) { return placed_tensor(t, mesh, placed.placements[i]); },
      [&](const Tensor& t, std::size_t i) {
        return placed_tensor(t, mesh, i < placed.incoming.size() ? placed.incoming[i] : whole);
      });
  compare(placed, actual, expected);
}

namespace {

// The call with all numbers in double precision; nothing if they are so already.
std::optional<PlacedCall> in_double(const PlacedCall& placed) {
  PlacedCall wide = placed;
  bool has_changed = false;
  for (TensorText* tensor : wide.call.tensor_texts()) {
    if (tensor->kind != "f" && tensor->kind != "bf" && tensor->kind != "z") continue;
    has_changed |= std::exchange(tensor->number, 0) != 0;
    if (tensor->kind == "bf") tensor->kind = "f";
  }
  return has_changed ? std::optional(wide) : std::nullopt;
}

// Whether a small difference is one of rounding: in double precision there is none.
bool is_rounding(const PlacedCall& placed) {
  const auto wide = in_double(placed);
  if (!wide) return false;
  const auto expected = plain_run(wide->call);
  return expected && judge(*wide, *expected).kind == Verdict::Kind::right;
}

}  // namespace

Verdict judge(const PlacedCall& placed, const Run& expected) {
  trace(placed.to_string());
  const mt::FallbackPolicy before = mt::fallback_policy();
  mt::set_fallback_policy(mt::FallbackPolicy::error);
  const OtherRun other = with_other_numbers(placed.call, expected);
  Verdict verdict = verdict_of(run_on_ranks(placed, expected, other));
  if (verdict.kind == Verdict::Kind::refused && lacks_a_rule(verdict.what)) {
    mt::set_fallback_policy(mt::FallbackPolicy::silent);
    verdict = verdict_of(run_on_ranks(placed, expected, other));
    verdict.is_replicated = true;
  }
  mt::set_fallback_policy(before);
  if (verdict.is_small && is_rounding(placed)) return {};
  return verdict;
}

std::string PlacedCall::to_string() const {
  std::string text = call.to_string() + " | ";
  for (std::size_t i = 0; i < mesh.size(); ++i) text += (i > 0 ? "x" : "") + std::to_string(mesh[i]);
  text += " |" + to_text(placements);
  return incoming.empty() ? text : text + " |" + to_text(incoming);
}

PlacedCall PlacedCall::parse(const std::string& text) {
  const std::size_t first = text.find('|');
  const std::size_t second = text.find('|', first + 1);
  const std::size_t third = text.find('|', second + 1);
  if (second == std::string::npos) throw std::invalid_argument("expected call | mesh | placements: " + text);
  PlacedCall placed{Call::parse(text.substr(0, first)), {}, {}};
  std::istringstream mesh(text.substr(first + 1, second - first - 1));
  for (std::string extent; std::getline(mesh, extent, 'x');) placed.mesh.push_back(std::stoll(extent));
  placed.placements = placements_in(text.substr(second + 1, third - second - 1));
  if (third != std::string::npos) placed.incoming = placements_in(text.substr(third + 1));
  return placed;
}

}  // namespace meshtorch::testing

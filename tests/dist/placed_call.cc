// Placed calls: run, compared, judged.
#include "placed_call.h"

#include <ATen/core/enum_tag.h>
#include <c10/util/Exception.h>

#include <condition_variable>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "compare_runs.h"
#include "numbers.h"

namespace meshtorch::testing {
namespace {

using torch::Tensor;

constexpr std::chrono::milliseconds kLimit = std::chrono::seconds(10);
constexpr std::uint64_t kSeed = 11;  // of random operators

class Silence : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

bool is_random(const Call& call) { return call.op.hasTag(at::Tag::nondeterministic_seeded); }

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

// The last digits of double numbers are others, this way or the other.
Place nudged(double sign) {
  return [sign](const Tensor& t, std::size_t i) {
    if (!is_differentiable(t) || at::toRealValueType(t.scalar_type()) != at::kDouble) return t;
    const Tensor steps = numbers(t.sizes(), at::kDouble, 60 + static_cast<int64_t>(i)) / 2;  // from -1 to 1
    return t * (1 + sign * std::ldexp(1.0, -50) * steps);
  };
}

Tensor farther(const Tensor& moved, const Tensor& from, const Tensor& to) {
  if (!from.defined() || !to.defined() || from.sizes() != to.sizes() || !is_differentiable(from))
    return moved;
  const Tensor way = (from - to).abs().detach();
  return moved.defined() ? torch::maximum(moved, way) : way;
}

void move_farther(std::vector<Tensor>& moved, const std::vector<Tensor>& from,
                  const std::vector<Tensor>& to) {
  moved.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) moved[i] = farther(moved[i], from[i], to[i]);
}

// Undefined where a result is no tensor.
std::vector<Tensor> result_tensors(const Run& run) {
  std::vector<Tensor> tensors;
  for (const c10::IValue& result : run.results)
    tensors.push_back(result.isTensor() ? result.toTensor() : Tensor());
  return tensors;
}

// The run with how far the plain call moves when the last digits of what it is given are others.
std::optional<Run> with_moves(const Call& call, Run expected) {
  const Place as_it_is = [](const Tensor& t, std::size_t) { return t; };
  Moves moves;
  try {
    const Run plain = run_call(call, expected.is_differentiated, as_it_is, as_it_is);
    for (const double sign : {1.0, -1.0}) {
      const Run other = run_call(call, expected.is_differentiated, nudged(sign), as_it_is);
      if (other.results.size() != plain.results.size()) return std::nullopt;
      move_farther(moves.results, result_tensors(plain), result_tensors(other));
      move_farther(moves.arguments, plain.arguments, other.arguments);
      move_farther(moves.gradients, plain.gradients, other.gradients);
    }
  } catch (const std::exception&) {
    return std::nullopt;
  }
  expected.moves = std::make_shared<const Moves>(std::move(moves));
  return expected;
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
  mt::Placements terms(placements.size());  // what is left when nothing is split
  for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
    const mt::Placement& p = placements[static_cast<std::size_t>(axis)];
    if (!p.is_partial()) continue;
    terms[static_cast<std::size_t>(axis)] = p;
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
  if (local.is_same(whole))
    return mt::distribute_tensor(whole, mesh, placements, {.src_data_rank = std::nullopt}).detach();
  const mt::DTensor pending = mt::DTensor::from_local(local, mesh, terms, {.shape = whole.sizes().vec()});
  return pending.redistribute(placements).detach();
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
  if (expected.moves) run = with_moves(other.call, *run);
  if (!run) return {call, expected};
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
  compare_runs(placed, actual, expected);
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

// The largest of some sums, or how many numbers exceed a limit: where two are equal but for rounding, the
// order of computing decides.
bool decides_by_last_digits(const Call& call) {
  const std::string name = call.name();
  return name.starts_with("linalg_matrix_norm") || name.starts_with("linalg_norm") ||
         name.starts_with("linalg_cond") || name.starts_with("linalg_matrix_rank");
}

// Whether a difference is one of rounding: in double precision there is none, or none that is larger
// than what the last digits of the operands make in the plain call.
bool is_rounding(const PlacedCall& placed, const Run& expected) {
  if (const auto wide = in_double(placed)) {
    const auto wide_run = plain_run(wide->call);
    return wide_run && judge(*wide, *wide_run).kind == Verdict::Kind::right;
  }
  if (expected.moves || is_random(placed.call)) return false;
  const auto conditioned = with_moves(placed.call, expected);
  return conditioned && judge(placed, *conditioned).kind == Verdict::Kind::right;
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
  const bool may_be_rounding =
      verdict.is_small || (verdict.kind == Verdict::Kind::wrong && decides_by_last_digits(placed.call));
  if (may_be_rounding && is_rounding(placed, expected)) return {};
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

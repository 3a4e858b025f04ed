// The proof of a rule on one call: split, run on every simulated rank, join, compare.
#include "prove/prove.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <set>

#include "core/number_text.h"
#include "local/kernel_operand.h"
#include "local/local_call.h"
#include "operator/bound_call.h"
#include "propagate/claims.h"
#include "prove/pieces.h"

namespace meshtorch::internal {
namespace {

// Relative to the largest number expected, or to 1.
double tolerance_of(at::ScalarType type) {
  switch (at::toRealValueType(type)) {
    case at::kDouble:
      return 1e-10;
    case at::kFloat:
      return 1e-5;
    case at::kHalf:
    case at::kBFloat16:
      return 0.03;
    default:
      return 0;
  }
}

double scale_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0 || at::isIntegralType(tensor.scalar_type(), true)) return 1;
  const at::Tensor sizes = tensor.abs().to(at::kDouble);
  return std::max(1.0, sizes.masked_fill(sizes.isfinite().logical_not_(), 0).max().item<double>());
}

bool has_terms(const at::Tensor& tensor) {
  if (at::isIntegralType(tensor.scalar_type(), true)) return true;
  return tensor.abs().to(at::kDouble).lt(1e30).all().item<bool>();
}

// New tensors have arbitrary numbers.
bool leaves_values_open(const std::string& operator_name) {
  return operator_name.find("empty") != std::string::npos;
}

// One call with its rule.
class CallProver {
 public:
  CallProver(const OperatorInfo& info, const RuleEntry& rule, torch::jit::Stack arguments,
             const ProofSettings& settings, Proof& proof)
      : info_(info), arguments_(std::move(arguments)), settings_(settings), proof_(proof) {
    visit_tensors(info, arguments_, [&](const at::Tensor& tensor, std::size_t argument, int element) {
      operands_.push_back({argument, element, tensor, nullptr});
    });
    call_ = BoundCall::bind(rule, info, operands_, arguments_);
  }

  // False if there is nothing to prove.
  bool begin() {
    if (!call_ || (call_->use().needs_elements && has_empty_operand())) return false;
    try {
      expected_ = run(arguments_, {});
    } catch (const std::exception&) {
      return false;
    }
    results_have_terms_ = std::all_of(expected_.results.begin(), expected_.results.end(),
                                      [](const at::Tensor& t) { return !t.defined() || has_terms(t); });
    return true;
  }

  void prove_claims() {
    for (const Shape& mesh : settings_.meshes) {
      for (const Choice& claim : claims_on(mesh)) check(claim, mesh);
    }
  }

  // Calls on what the first rank of a few would hold, and the last of many: smaller sizes, and none.
  std::vector<torch::jit::Stack> smaller_calls() {
    std::vector<torch::jit::Stack> calls;
    for (const auto& [extent, index] : {std::pair{2, 0}, {3, 0}, {5, 0}, {8, 7}}) {
      const Shape mesh{extent};
      for (const Choice& claim : claims_on(mesh)) {
        const auto changes = call_->local_changes(claim, mesh, {index});
        if (!is_possible(claim) || !changes) continue;
        torch::jit::Stack part = stack_of(split(claim, mesh), static_cast<std::size_t>(index));
        change_arguments(*changes, part.data());
        calls.push_back(std::move(part));
      }
    }
    return calls;
  }

 private:
  bool has_empty_operand() const {
    return std::any_of(operands_.begin(), operands_.end(),
                       [](const Operand& operand) { return operand.tensor.numel() == 0; });
  }

  std::vector<Choice> claims_on(const Shape& mesh) const {
    return claims(*call_->bound(), call_->use().contracted, mesh);
  }

  // What a call leaves behind: its results, then the arguments it has written to.
  struct Outcome {
    std::vector<at::Tensor> results;
    std::vector<at::Tensor> written;
  };

  Outcome run(torch::jit::Stack stack, const LocalChanges& changes) const {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    Outcome outcome;
    for (const Operand& operand : operands_) {
      if (!info_.arguments[operand.argument].is_written || operand.element >= 0) continue;
      c10::IValue& value = stack[operand.argument];
      value = value.toTensor().clone();
      outcome.written.push_back(value.toTensor());
    }
    run_local_call(info_, changes, stack);
    outcome.results = tensors_in(stack);
    return outcome;
  }

  // A pending sum of truth values, or an average of whole numbers, means nothing; and no terms add up to
  // numbers that are not finite, or nearly not, nor to such results.
  bool is_possible(const Choice& claim) const {
    for (std::size_t i = 0; i < claim.operands.size(); ++i) {
      const at::Tensor& tensor = call_->operand(i).tensor;
      for (const Placement& p : claim.operands[i]) {
        if (!p.is_partial()) continue;
        if (tensor.scalar_type() == at::kBool || !has_terms(tensor) || !results_have_terms_) return false;
        const bool is_added = p.is_partial(ReduceOp::sum) || p.is_partial(ReduceOp::avg);
        if (!is_added && tensor.is_complex()) return false;  // no other reduction is defined
        if (p.is_partial(ReduceOp::avg) && at::isIntegralType(tensor.scalar_type(), true)) return false;
      }
    }
    return true;
  }

  // For each operand, its pieces. Where only the shape matters, the numbers are others on every rank.
  std::vector<Pieces> split(const Choice& claim, const Shape& mesh) const {
    std::vector<Pieces> all(operands_.size());
    for (std::size_t i = 0; i < call_->order().size(); ++i) {
      const std::uint64_t seed = settings_.seed * 1000003 + 10007 * i;
      Pieces& pieces = all[call_->order()[i]];
      pieces = split_over(call_->operand(i).tensor, claim.operands[i], mesh, seed);
      for (std::size_t rank = 0; call_->is_shape_only(i) && rank < pieces.size(); ++rank)
        pieces[rank] = random_like(pieces[rank], seed + 77 * rank);
    }
    return all;
  }

  torch::jit::Stack stack_of(const std::vector<Pieces>& pieces, std::size_t rank) const {
    torch::jit::Stack stack = arguments_;
    std::vector<at::Tensor> locals;
    for (std::size_t i = 0; i < pieces.size(); ++i)
      locals.push_back(info_.is_view ? pieces[i][rank]
                                     : as_kernel_operand(operands_[i].tensor, pieces[i][rank]));
    replace_operands(info_, operands_, locals, stack.data());
    return stack;
  }

  void check(const Choice& claim, const Shape& mesh) {
    if (!is_possible(claim) || !call_->suits_kernels(claim, mesh)) {
      ++proof_.passed_over;
      return;
    }
    const std::vector<Shape> ranks = coordinates(mesh);
    std::vector<LocalChanges> changes;
    for (const Shape& coordinate : ranks) {
      auto change = call_->local_changes(claim, mesh, coordinate);
      if (!change) {
        ++proof_.passed_over;
        return;
      }
      changes.push_back(*std::move(change));
    }
    ++proof_.claims;
    const std::vector<Pieces> pieces = split(claim, mesh);
    std::vector<Outcome> outcomes;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      try {
        outcomes.push_back(run(stack_of(pieces, rank), changes[rank]));
      } catch (const c10::Error& error) {
        report(claim, mesh, c10::str("rank ", rank, " is refused: ", error.what_without_backtrace()));
        return;
      } catch (const std::exception& error) {
        report(claim, mesh, c10::str("rank ", rank, " is refused: ", error.what()));
        return;
      }
    }
    compare(claim, mesh, outcomes);
  }

  void compare(const Choice& claim, const Shape& mesh, const std::vector<Outcome>& outcomes) {
    const auto gathered = [&](std::size_t i, auto member) {
      Pieces pieces;
      for (const Outcome& outcome : outcomes) pieces.push_back((outcome.*member)[i]);
      return pieces;
    };
    for (const Outcome& outcome : outcomes) {
      if (outcome.results.size() == expected_.results.size()) continue;
      report(claim, mesh, c10::str(outcome.results.size(), " results, expected ", expected_.results.size()));
      return;
    }
    std::string wrong;
    for (std::size_t i = 0; i < expected_.results.size() && wrong.empty(); ++i) {
      const Pieces pieces = gathered(i, &Outcome::results);
      const int result = result_of_tensor(*call_->bound(), static_cast<int>(i));
      wrong = shape_mistake(pieces, result, expected_.results[i]);
      if (wrong.empty())
        wrong = mistake(pieces, claim.results[static_cast<std::size_t>(result)], mesh, expected_.results[i]);
      if (!wrong.empty()) wrong = c10::str("result ", i, " ", wrong);
    }
    for (std::size_t i = 0; i < expected_.written.size() && wrong.empty(); ++i) {
      const std::size_t tensor = written_rule_tensor(i);
      wrong = mistake(gathered(i, &Outcome::written), claim.operands[tensor], mesh, expected_.written[i]);
      if (!wrong.empty())
        wrong = c10::str("argument ", info_.arguments[call_->operand(tensor).argument].name, " ", wrong);
    }
    if (!wrong.empty()) report(claim, mesh, wrong);
  }

  // The number among the rule's operands of what is written as number `index`.
  std::size_t written_rule_tensor(std::size_t index) const {
    for (std::size_t i = 0; i < call_->order().size(); ++i) {
      const Operand& operand = call_->operand(i);
      if (info_.arguments[operand.argument].is_written && operand.element < 0 && index-- == 0) return i;
    }
    TORCH_INTERNAL_ASSERT(false, "`", info_.name, "` writes to what is no operand of its rule");
  }

  // The global shape that the dispatcher concludes from each rank's result.
  std::string shape_mistake(const Pieces& pieces, int result, const at::Tensor& expected) const {
    for (std::size_t rank = 0; rank < pieces.size() && expected.defined(); ++rank) {
      if (!pieces[rank].defined()) continue;
      Shape concluded;
      try {
        concluded = result_shape(*call_->bound(), result, pieces[rank].sizes().vec());
      } catch (const std::invalid_argument& error) {
        return error.what();
      }
      if (expected.sizes() == c10::IntArrayRef(concluded)) continue;
      return c10::str("has shape ", shape_text(expected.sizes()), "; rank ", rank, " concludes ",
                      shape_text(concluded));
    }
    return {};
  }

  // Empty if the pieces are the expected tensor.
  std::string mistake(const Pieces& pieces, const Placements& placements, const Shape& mesh,
                      const at::Tensor& expected) const {
    const std::vector<Shape> ranks = coordinates(mesh);
    for (std::size_t rank = 0; rank < pieces.size(); ++rank) {
      const at::Tensor& piece = pieces[rank];
      if (piece.defined() != expected.defined()) return c10::str("is defined on one side only, rank ", rank);
      if (!expected.defined()) continue;
      if (piece.scalar_type() != expected.scalar_type())
        return c10::str("is ", c10::toString(piece.scalar_type()), " on rank ", rank, ", expected ",
                        c10::toString(expected.scalar_type()));
      const Shape local = local_shape(expected.sizes().vec(), placements, mesh, ranks[rank]);
      if (piece.sizes() != c10::IntArrayRef(local))
        return c10::str("has shape ", shape_text(piece.sizes()), " on rank ", rank, ", expected ",
                        shape_text(local));
    }
    if (!expected.defined() || leaves_values_open(info_.name)) return {};
    const Joined joined = join(pieces, placements, mesh);
    const double allowed = tolerance_of(expected.scalar_type()) * scale_of(expected);
    if (joined.disagreement > allowed)
      return c10::str("is ", to_string(placements), ", but its copies differ by ", joined.disagreement);
    const double difference = largest_difference(joined.whole, expected);
    return difference <= allowed ? "" : c10::str("differs by ", difference);
  }

  void report(const Choice& claim, const Shape& mesh, const std::string& wrong) {
    std::string options;
    for (const Option& option : claim.options)
      options.append(options.empty() ? "" : "\n         then ").append(option.to_string());
    proof_.mistakes.push_back(c10::str(
        "meshtorch: the rule of `", info_.name, "` is wrong: ", wrong.substr(0, wrong.find('\n')),
        "\n  rule   ", call_->use().rule.to_string(), "\n  option ", options, "\n  mesh   ", shape_text(mesh),
        "\n  call   ", describe_arguments(info_, arguments_), "\n  seed   ", settings_.seed,
        "\n  do: write a rule that does not give this option: `s!` for a dim that must be whole, no `+` or "
        "`*` "
        "before what is not linear"));
  }

  const OperatorInfo& info_;
  const torch::jit::Stack arguments_;
  const ProofSettings& settings_;
  Proof& proof_;
  Operands operands_;
  std::unique_ptr<BoundCall> call_;
  Outcome expected_;
  bool results_have_terms_ = false;
};

}  // namespace

Proof prove(const OperatorInfo& info, const RuleEntry& rule, c10::ArrayRef<c10::IValue> arguments,
            const ProofSettings& settings) {
  Proof proof;
  CallProver whole(info, rule, torch::jit::Stack(arguments.begin(), arguments.end()), settings, proof);
  proof.is_bound = whole.begin();
  if (!proof.is_bound) return proof;
  whole.prove_claims();
  if (!settings.with_smaller_calls || !proof.mistakes.empty()) return proof;
  std::set<std::string> proved{describe_arguments(info, arguments)};
  for (torch::jit::Stack& smaller : whole.smaller_calls()) {
    if (!proved.insert(describe_arguments(info, smaller)).second) continue;
    CallProver part(info, rule, std::move(smaller), settings, proof);
    if (part.begin()) part.prove_claims();
  }
  return proof;
}

}  // namespace meshtorch::internal

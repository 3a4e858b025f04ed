// Rules registered at run time: checked against the operator's schema, proved in debug mode, put in force.
#include "meshtorch/register_rule.h"

#include <algorithm>

#include "operator/call_arguments.h"
#include "prove/prove.h"
#include "prove/register_options.h"
#include "rules/own_rules.h"

namespace meshtorch {
using namespace internal;
namespace {

std::string advice_for(const OperatorInfo& info) {
  if (info.functional) return "register the rule of the functional operator: its variants follow it";
  if (info.is_composite) return "register rules for the operators that it calls";
  return "leave it as it is: meshtorch runs it in its own way";
}

// Throws if no rule of the operator would ever be asked.
void check_runs_by_rule(const OperatorInfo& info) {
  TORCH_CHECK_VALUE(!info.functional && info.handling.kind == Handling::Kind::rule, "meshtorch: `", info.name,
                    "` does not run by a rule of its own\n  it is ",
                    info.functional     ? "an in-place or out= variant"
                    : info.is_composite ? "composite: LibTorch decomposes it"
                                        : "one of those that no rule describes",
                    "\n  do: ", advice_for(info));
}

int count_tensor_arguments(const OperatorInfo& info) {
  return static_cast<int>(
      std::count_if(info.arguments.begin(), info.arguments.end(), [](const ArgumentInfo& argument) {
        return argument.kind != ArgumentInfo::Kind::other && !argument.is_out;
      }));
}

void check_fits_schema(const OperatorInfo& info, const Rule& rule) {
  const RulePatterns patterns = rule.patterns();
  const int tensors = count_tensor_arguments(info);
  const auto results = static_cast<int>(info.op.schema().returns().size());
  TORCH_CHECK_VALUE(patterns.operand_count == tensors && patterns.tensor_count == tensors + results,
                    "meshtorch: the rule of `", info.name, "` has ", patterns.operand_count, " operands and ",
                    patterns.tensor_count - patterns.operand_count, " results, the operator ", tensors,
                    " tensor arguments and ", results, " results\n  rule   ", rule.to_string(), "\n  schema ",
                    toString(info.op.schema()), "\n  do: write one tensor for each, in schema order");
}

void check_is_argument(const OperatorInfo& info, const std::string& argument) {
  TORCH_CHECK_VALUE(info.find(argument), "meshtorch: the rule of `", info.name, "` names the argument ",
                    argument, ", which the operator has not\n  schema ", toString(info.op.schema()),
                    "\n  do: take one of its argument names");
}

RuleEntry entry_of(const OperatorInfo& info, const Rule& rule, const RuleOptions& options) {
  RuleEntry entry(rule);
  for (const auto& [name, argument] : options.at) {
    check_is_argument(info, argument);
    entry.at(name, argument);
  }
  for (const auto& [name, argument] : options.rank) {
    check_is_argument(info, argument);
    entry.rank(name, argument);
  }
  for (const std::string& argument : options.shape_only) {
    check_is_argument(info, argument);
    entry.shape_only(argument);
  }
  return entry.reduce(options.reduce).needs_elements(options.needs_elements);
}

void prove_on_samples(const OperatorInfo& info, const RuleEntry& entry, const RuleOptions& options) {
  for (const std::vector<c10::IValue>& sample : options.samples) {
    const torch::jit::Stack arguments = with_defaults(info, sample);
    const Proof proof = prove(info, entry, arguments);
    TORCH_CHECK_VALUE(proof.is_bound, "meshtorch: the rule of `", info.name,
                      "` does not fit a sample of its own\n  rule   ", entry.describe(), "\n  sample ",
                      describe_arguments(info, arguments),
                      "\n  do: give arguments that the operator takes, of the ranks that the rule says");
    TORCH_CHECK_VALUE(proof.mistakes.empty(), proof.mistakes.front());
  }
}

bool has_out(const OperatorInfo& info) {
  return std::ranges::any_of(info.arguments, [](const ArgumentInfo& argument) { return argument.is_out; });
}

// The rule of as many tensors as the operator has that says nothing of their dims.
std::string unnamed_rule(const OperatorInfo& info) {
  std::string text;
  const auto add = [&](std::string_view tensor) { text.append(text.empty() ? "" : ", ").append(tensor); };
  for (const ArgumentInfo& argument : info.arguments) {
    if (argument.kind == ArgumentInfo::Kind::other || argument.is_out) continue;
    add(argument.kind == ArgumentInfo::Kind::tensor_list ? "_..[]" : "_..?");
  }
  text += " ->";
  for (std::size_t r = 0; r < info.op.schema().returns().size(); ++r) {
    const bool is_list = info.op.schema().returns()[r].type()->kind() == c10::TypeKind::ListType;
    text.append(r == 0 ? " " : ", ").append(is_list ? "_..[]" : "_..");
  }
  return text;
}

}  // namespace

void internal::register_options(std::string_view op, ListOptions list) {
  const OperatorInfo& named = operator_named(op);
  const OperatorInfo& info = named.functional && has_out(named) ? operator_info(*named.functional) : named;
  check_runs_by_rule(info);
  const Rule rule = Rule::parse(unnamed_rule(info));
  set_own_rule(info.name, RuleEntry([rule, list = std::move(list)](const OpArguments& call) {
                 RuleUse use{rule};
                 use.listed = list(dynamic_cast<const StackArguments&>(call));
                 return use;
               }));
  refresh_rules();
}

void register_rule(std::string_view op, Rule rule, const RuleOptions& options) {
  const OperatorInfo& info = operator_named(op);
  check_runs_by_rule(info);
  check_fits_schema(info, rule);
  RuleEntry entry = entry_of(info, rule, options);
  if (rule_checks() != RuleChecks::none) prove_on_samples(info, entry, options);
  set_own_rule(info.name, std::move(entry));
  refresh_rules();
}

}  // namespace meshtorch

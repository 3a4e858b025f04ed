// Why an operator runs as it does: its rule, the options of each mesh axis with their costs, the choice.
#include <algorithm>

#include "core/number_text.h"
#include "meshtorch/device_mesh.h"
#include "meshtorch/register_rule.h"
#include "operator/call_arguments.h"
#include "operator/decomposition.h"
#include "operator/situation.h"
#include "prove/prove.h"

namespace meshtorch {
using namespace internal;
namespace {

// The call as it came, and the mesh of its tensors.
struct GivenCall {
  const OperatorInfo& info;
  torch::jit::Stack arguments;
  Operands operands = {};
  MeshImpl* mesh = nullptr;
};

GivenCall given_call(std::string_view op, std::vector<c10::IValue> arguments) {
  const OperatorInfo& info = operator_named(op);
  GivenCall call{info, with_defaults(info, std::move(arguments))};
  visit_tensors(info, call.arguments, [&](const at::Tensor& tensor, std::size_t argument, int element) {
    DTensorMeta* meta = meta_of(tensor);
    if (meta != nullptr) call.mesh = meta->layout->mesh;
    call.operands.push_back({argument, element, tensor, meta});
  });
  TORCH_CHECK_VALUE(call.mesh != nullptr, "meshtorch: explain of `", info.name,
                    "` got no distributed tensor\n  call   ", describe_arguments(info, call.arguments),
                    "\n  do: give it the tensors that the operator is called with");
  return call;
}

std::string operands_text(const GivenCall& call) {
  std::string text;
  for (const Operand& operand : call.operands) {
    text += "  " + call.info.arguments[operand.argument].name;
    if (operand.element >= 0) text += "[" + std::to_string(operand.element) + "]";
    text += " " + c10::str(operand.tensor.sizes()) + " " + c10::toString(operand.tensor.scalar_type()) + " " +
            (operand.meta != nullptr ? to_string(operand.meta->layout->placements) : "plain") + "\n";
  }
  return text;
}

// The options of one axis as a table, the chosen one marked.
std::string options_table(const std::vector<PricedOption>& considered) {
  std::size_t width = 0;
  for (const PricedOption& priced : considered) width = std::max(width, priced.option.to_string().size());
  std::string text;
  for (const PricedOption& priced : considered) {
    const std::string option = priced.option.to_string();
    text += (priced.is_chosen ? "  > " : "    ") + option + std::string(width - option.size() + 2, ' ') +
            (priced.communicates ? "moves data  " : "            ") + time_text(priced.seconds) + "\n";
  }
  return text;
}

std::string choice_text(const GivenCall& given, const BoundCall& call, const Choice& choice) {
  std::string text = "choice\n";
  for (std::size_t i = 0; i < call.order().size(); ++i) {
    const Operand& operand = call.operand(i);
    const Placements& now = placements_of(operand, *given.mesh);
    if (now == choice.operands[i]) continue;
    text += "  " + given.info.arguments[operand.argument].name + " " + to_string(now) + " -> " +
            to_string(choice.operands[i]) + "\n";
  }
  for (std::size_t r = 0; r < choice.results.size(); ++r)
    text += "  result " + std::to_string(r) + " " + to_string(choice.results[r]) + "\n";
  return text;
}

std::string replicated(const std::string& why) {
  return "choice\n  every tensor whole on every rank: " + why + "\n";
}

std::string explain_by_rule(const GivenCall& given, const RuleEntry& rule) {
  const auto call = BoundCall::bind(rule, given.info, given.operands, given.arguments);
  if (!call) return "rule   " + rule.describe() + "\n" + replicated("the rule does not fit the shapes");
  std::string text = "rule   " + call->use().rule.to_string() + "\n";
  std::vector<std::vector<PricedOption>> considered;
  const Situation situation = situation_of(*call, given.info, given.operands, *given.mesh);
  const auto choice = choose(*call->bound(), situation, &considered);
  for (std::size_t i = 0; i < considered.size(); ++i) {
    const std::size_t axis = i % given.mesh->shape().size();
    text += "axis " + std::to_string(axis) + ", " + std::to_string(given.mesh->shape()[axis]) + " ranks";
    if (call->bound()->paired)
      text += ", element " + std::to_string(i / given.mesh->shape().size()) + " of the lists";
    text += "\n" + options_table(considered[i]);
  }
  if (!choice) return text + replicated("no option leaves what is written where it is");
  if (!call->suits_kernels(*choice, given.mesh->shape()))
    return text + replicated("the kernels need elements, and a rank would have none");
  return text + choice_text(given, *call, *choice);
}

}  // namespace

std::string explain_call(std::string_view op, std::vector<c10::IValue> arguments) {
  const GivenCall call = given_call(op, std::move(arguments));
  std::string text = call.info.name + " on " + DeviceMesh(call.mesh->shared_from_this()).to_string() + "\n" +
                     operands_text(call);
  switch (call.info.handling.kind) {
    case Handling::Kind::composite:
      return text + "composite: LibTorch decomposes it; explain the operators that it calls\n";
    case Handling::Kind::rejected:
      return text + "refused: it" + call.info.handling.refusal + "\n";
    case Handling::Kind::via_functional:
      return text + "written: explain " + rule_name(call.info.functional->operator_name()) +
             ", whose results are copied\n";
    case Handling::Kind::decomposition:
      if (!call.info.handling.decomposition->traits.asks_rule)
        return text + "meshtorch writes it out in other operators: explain those\n";
      text += "meshtorch writes it out in other operators; where its own rule is asked:\n";
      break;
    default:
      break;
  }
  const RuleEntry* rule = call.info.rule;
  return text + (rule != nullptr ? explain_by_rule(call, *rule) : replicated("it has no rule"));
}

}  // namespace meshtorch

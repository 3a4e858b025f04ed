// A look at calls before they are decided.
#include "prove/call_check.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>

#include "local/local_call.h"
#include "tensor/from_local.h"

namespace meshtorch::internal {
namespace {

struct Current {
  std::mutex mutex;
  std::shared_ptr<const CallCheck> check = std::make_shared<const CallCheck>(initial_call_check());
  std::atomic<bool> is_set = static_cast<bool>(check->check);
};

Current& current() {
  static Current instance;
  return instance;
}

}  // namespace

void set_call_check(CallCheck check) {
  Current& now = current();
  const std::scoped_lock lock(now.mutex);
  now.is_set = static_cast<bool>(check.check);
  now.check = std::make_shared<const CallCheck>(std::move(check));
}

void check_call(const OperatorInfo& info, const Operands& operands, c10::ArrayRef<c10::IValue> arguments) {
  Current& now = current();
  if (!now.is_set || info.rule == nullptr) return;
  std::shared_ptr<const CallCheck> check;
  {
    const std::scoped_lock lock(now.mutex);
    check = now.check;
  }
  const OperatorInfo& functional = info.functional ? operator_info(*info.functional) : info;
  if (check->is_for && !check->is_for(functional)) return;
  // A tensor without data has nothing to prove a rule with.
  if (std::ranges::any_of(operands, [](const Operand& operand) { return operand.tensor.is_meta(); })) return;
  std::vector<at::Tensor> whole;
  for (const Operand& operand : operands)
    whole.push_back((operand.meta != nullptr ? whole_local(operand.tensor) : operand.tensor).detach());
  torch::jit::Stack plain(arguments.begin(), arguments.end());
  replace_operands(info, operands, whole, plain.data());
  torch::jit::Stack inputs;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    if (!info.functional || !info.arguments[i].is_out) inputs.push_back(plain[i]);
  }
  check->check(functional, inputs);
}

}  // namespace meshtorch::internal

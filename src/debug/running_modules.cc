// Which modules are running. Backward nodes are traced to modules by their sequence numbers: those that a
// module's forward records lie between the numbers at its begin and end.
#include "debug/running_modules.h"

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/function.h>
#include <torch/nn/module.h>
#include <torch/csrc/distributed/c10d/RankLocal.hpp>

#include "meshtorch/detail/module_scope.h"
#include "nn/hookable_module.h"
#include "signature/collective_signature.h"
#include "world/agree.h"

namespace meshtorch {
using namespace internal;
namespace {

struct Frame {
  const torch::nn::Module* module;  // null: of another language
  std::string path;
  std::uint64_t first_node;
};

// The nodes [first, last) were recorded while these modules ran.
struct Recorded {
  std::uint64_t first;
  std::uint64_t last;
  std::vector<std::string> paths;
};

struct Watch {
  int users = 0;
  std::vector<Frame> frames;
  std::vector<Recorded> recorded;  // inner modules before outer ones
};

// While no debug mode is active, nodes of so many modules are known: enough for a step.
constexpr std::size_t kRecorded = 4096;

Watch& watch() { return c10d::RankLocal<Watch>::get(); }

std::string path_of(const torch::nn::Module& module, const std::vector<Frame>& frames) {
  if (frames.empty()) {
    std::string name = class_of(module);
    if (const std::size_t scope = name.rfind("::"); scope != std::string::npos) name = name.substr(scope + 2);
    if (name.ends_with("Impl")) name.resize(name.size() - 4);
    return name;
  }
  const Frame& parent = frames.back();
  if (parent.module == nullptr) return parent.path + "." + class_of(module);
  for (const auto& part : parent.module->named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
    if (part.value().get() == &module) return parent.path + "." + part.key();
  }
  return parent.path + "." + class_of(module);
}

std::vector<std::string> paths_of(const std::vector<Frame>& frames) {
  std::vector<std::string> paths;
  for (const Frame& frame : frames) paths.push_back(frame.path);
  return paths;
}

// In backward, the modules that ran when the node was recorded; null if none did.
const std::vector<std::string>* modules_of_node(const torch::autograd::Node& node, const Watch& now) {
  const std::uint64_t number = node.sequence_nr();
  for (const Recorded& recorded : now.recorded) {
    if (number >= recorded.first && number < recorded.last) return &recorded.paths;
  }
  return nullptr;
}

}  // namespace

void internal::watch_modules(bool is_on) {
  const int users = watch().users + (is_on ? 1 : -1);
  if (users == (is_on ? 1 : 0)) watch() = Watch{};
  watch().users = users;
}

RunningModules internal::running_modules() {
  const Watch& now = watch();
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr) return {paths_of(now.frames), false};
  const auto* paths = modules_of_node(*node, now);
  return {paths != nullptr ? *paths : std::vector<std::string>(), true};
}

std::string internal::innermost_module() {
  const Watch& now = watch();
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr) return now.frames.empty() ? "" : now.frames.back().path;
  const auto* paths = modules_of_node(*node, now);
  return paths == nullptr || paths->empty() ? "" : paths->back();
}

void internal::enter_module(std::string path) {
  watch().frames.push_back({nullptr, std::move(path), at::sequence_number::peek()});
}

void internal::leave_module() {
  Watch& now = watch();
  if (now.frames.empty()) return;
  const std::uint64_t first = now.frames.back().first_node;
  const std::uint64_t last = at::sequence_number::peek();
  if (last > first) now.recorded.push_back({first, last, paths_of(now.frames)});
  if (now.users == 0 && now.recorded.size() > 2 * kRecorded)
    now.recorded.erase(now.recorded.begin(), now.recorded.begin() + kRecorded);
  now.frames.pop_back();
}

// Ranks that compare in full say in which module they are.
bool detail::ModuleScope::is_wanted() { return compares_in_full() || watch().users > 0; }

detail::ModuleScope::ModuleScope(torch::nn::Module& module) : entered_(is_wanted()) {
  if (!entered_) return;
  running_module.store(&innermost_module, std::memory_order_relaxed);
  auto& frames = watch().frames;
  frames.push_back({&module, path_of(module, frames), at::sequence_number::peek()});
}

detail::ModuleScope::~ModuleScope() {
  if (entered_) leave_module();
}

}  // namespace meshtorch

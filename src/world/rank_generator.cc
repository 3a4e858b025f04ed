// A default generator for each rank that is a thread: operators without a generator get the rank's as an
// argument, and LibTorch's one default generator passes seeds and states on to it. Its state also says where
// the random numbers of distributed tensors stand.
#include "world/rank_generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "runtime/key.h"
#include "world/rank_context.h"

namespace meshtorch::internal {
namespace {

// Null outside of thread ranks.
c10::GeneratorImpl* generator_of_rank() {
  const auto rank = current_rank_or_null();
  return rank && rank->plain_generator().defined() ? rank->plain_generator().unsafeGetGeneratorImpl()
                                                   : nullptr;
}

// Where the distributed numbers stand, inside a state of LibTorch's generator: in two fields of 8 bytes that
// it has kept for old files since version 1.5 and writes as zeros. So a state has the size that it has
// everywhere, and one that was made elsewhere says nothing of them.
constexpr std::size_t kStateBytes = 5056, kSeedAt = 5016, kNextNumberAt = 5032;

RandomSource& distributed_numbers() {
  const auto rank = current_rank_or_null();
  return rank ? rank->random() : starting_random();
}

std::uint8_t* bytes_of(const c10::TensorImpl& state) {
  const bool is_known = state.numel() == static_cast<std::int64_t>(kStateBytes) &&
                        state.dtype() == caffe2::TypeMeta::Make<std::uint8_t>() && state.is_contiguous();
  return is_known ? static_cast<std::uint8_t*>(const_cast<void*>(state.data())) : nullptr;
}

void note_distributed_numbers(const c10::TensorImpl& state) {
  std::uint8_t* bytes = bytes_of(state);
  TORCH_INTERNAL_ASSERT(bytes != nullptr, "the state of LibTorch's generator has ", state.numel(), " bytes");
  const RandomCall next = distributed_numbers().peek();
  const std::uint64_t number = next.number + 1;  // 0: nothing is noted
  std::memcpy(bytes + kSeedAt, &next.seed, sizeof next.seed);
  std::memcpy(bytes + kNextNumberAt, &number, sizeof number);
}

void restore_distributed_numbers(const c10::TensorImpl& state) {
  const std::uint8_t* bytes = bytes_of(state);
  if (bytes == nullptr) return;
  RandomCall next{};
  std::memcpy(&next.seed, bytes + kSeedAt, sizeof next.seed);
  std::memcpy(&next.number, bytes + kNextNumberAt, sizeof next.number);
  if (next.number == 0) return;
  --next.number;
  distributed_numbers().set(next);
}

// What is not virtual draws from the process's own numbers, as in LibTorch: operators come here with the
// rank's generator instead.
class SharedDefaultGenerator final : public at::CPUGeneratorImpl {
 public:
  explicit SharedDefaultGenerator(const c10::GeneratorImpl& before) {
    const auto state = before.get_state();
    CPUGeneratorImpl::set_state(*state);
  }

  void set_current_seed(std::uint64_t seed) override {
    if (auto* mine = generator_of_rank()) {
      const std::scoped_lock lock(mine->mutex_);
      mine->set_current_seed(seed);
    } else {
      CPUGeneratorImpl::set_current_seed(seed);
    }
  }
  std::uint64_t current_seed() const override {
    const auto* mine = generator_of_rank();
    return mine != nullptr ? mine->current_seed() : CPUGeneratorImpl::current_seed();
  }
  std::uint64_t seed() override {
    const std::uint64_t random = c10::detail::getNonDeterministicRandom();
    set_current_seed(random);
    return random;
  }
  void set_state(const c10::TensorImpl& state) override {
    if (auto* mine = generator_of_rank()) {
      const std::scoped_lock lock(mine->mutex_);
      mine->set_state(state);
    } else {
      CPUGeneratorImpl::set_state(state);
    }
    restore_distributed_numbers(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto state = plain_state();
    note_distributed_numbers(*state);
    return state;
  }

 private:
  c10::intrusive_ptr<c10::TensorImpl> plain_state() const {
    if (auto* mine = generator_of_rank()) {
      const std::scoped_lock lock(mine->mutex_);
      return mine->get_state();
    }
    return CPUGeneratorImpl::get_state();
  }
  at::CPUGeneratorImpl* clone_impl() const override {
    auto* copy = new at::CPUGeneratorImpl();
    const auto state = plain_state();
    copy->set_state(*state);
    return copy;
  }
};

bool is_optional_generator(const c10::Argument& argument) {
  const auto* optional = argument.type()->castRaw<c10::OptionalType>();
  return optional != nullptr && optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
}

// A distributed tensor has random numbers of another kind; those of other devices, other generators.
bool draws_from_cpu(c10::DispatchKeySet keys) {
  return keys.has(c10::DispatchKey::CPU) && !keys.has(kMeshKey);
}

void give_generator(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (draws_from_cpu(keys)) {
    const auto& arguments = op.schema().arguments();
    const auto rank = current_rank_or_null();
    for (std::size_t i = 0; rank && i < arguments.size(); ++i) {
      c10::IValue& value = (*stack)[stack->size() - arguments.size() + i];
      if (value.isNone() && is_optional_generator(arguments[i])) value = rank->plain_generator();
    }
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kThreadRankKey), stack);
}

}  // namespace

void add_random_kernels(torch::Library& thread_rank_key) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = name.name.starts_with("aten::") ? dispatcher.findSchema(name) : std::nullopt;
    if (!op) continue;
    const auto& arguments = op->schema().arguments();
    if (std::none_of(arguments.begin(), arguments.end(), is_optional_generator)) continue;
    const std::string full =
        name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
    thread_rank_key.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&give_generator>());
  }
}

void share_default_generator() {
  static std::once_flag once;
  std::call_once(once, [] {
    // LibTorch keeps it in a variable that is not const and hands out references.
    auto& default_generator = const_cast<at::Generator&>(at::detail::getDefaultCPUGenerator());
    const std::scoped_lock lock(default_generator.mutex());
    auto shared = c10::make_intrusive<SharedDefaultGenerator>(*default_generator.unsafeGetGeneratorImpl());
    shared->set_pyobj(default_generator.pyobj());
    static const at::Generator before = default_generator;  // somebody may hold its mutex
    default_generator = at::Generator(std::move(shared));
  });
}

void use_rank_generator(bool is_rank) { c10::impl::tls_set_dispatch_key_included(kThreadRankKey, is_rank); }

at::Generator copy_of_default_generator() {
  share_default_generator();  // another rank may be about to replace it
  at::Generator original = at::detail::getDefaultCPUGenerator();
  const std::scoped_lock lock(original.mutex());
  return original.clone();
}

}  // namespace meshtorch::internal

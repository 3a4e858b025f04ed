// Random operators that are not defined by global index.
#include "dispatch/random_whole.h"

#include <ATen/CPUGeneratorImpl.h>

#include "operator/stack_arguments.h"
#include "tensor/random.h"

namespace meshtorch::internal {

void seed_generator(const OperatorInfo& info, torch::jit::Stack& stack) {
  const std::size_t base = stack.size() - info.arguments.size();
  c10::IValue& generator = stack[base + *info.find("generator")];
  const DrawsFrom numbers(info.op.schema().name().c_str(), generator.toOptional<at::Generator>());
  const at::Tensor first = tensors_in(c10::ArrayRef<c10::IValue>(stack).slice(base)).at(0);
  TORCH_CHECK_NOT_IMPLEMENTED(first.is_cpu() || first.is_meta(), "meshtorch: `", info.op.schema().name(),
                              "` draws equal numbers on all ranks on the CPU only, not on ", first.device(),
                              "\n  do: move the tensor to the CPU for this call");
  const RandomWords words = random_words(take_random_call(), std::uint64_t{0});
  generator = at::detail::createCPUGenerator(join_words(words[0], words[1]));
}

}  // namespace meshtorch::internal

// What LibTorch's schemas and derivatives leave open or get wrong, as data. Each line is shown to be needed,
// and the list to be complete, by tests/sim/fates_test.cc.
#pragma once

#include <span>
#include <string_view>

namespace meshtorch {

// Arguments that kernels write though the schema does not say so.
struct WrittenArgument {
  std::string_view op;
  std::string_view argument;
};
std::span<const WrittenArgument> written_arguments();

// Operators with a derivative that is a plain zero tensor, made of sizes alone.
std::span<const std::string_view> plain_zero_gradients();

bool is_written_anyway(std::string_view op, std::string_view argument);
bool has_plain_zero_gradient(std::string_view op);

// The result shares the memory of the argument in all but the schema: composite operators write through it.
bool is_view_anyway(std::string_view op);

}  // namespace meshtorch

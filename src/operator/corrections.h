// What LibTorch's schemas and derivatives leave open or get wrong, as data. Each line is shown to be needed,
// and the list to be complete, by tests/sim/handling_test.cc.
#pragma once

#include <span>
#include <string_view>

namespace meshtorch::internal {

struct NamedArgument {
  std::string_view op;
  std::string_view argument;
};

// Arguments that kernels write though the schema does not say so.
std::span<const NamedArgument> written_arguments();

// Operators with a derivative that is a plain zero tensor, made of sizes alone.
std::span<const std::string_view> plain_zero_gradients();

bool is_written_anyway(std::string_view op, std::string_view argument);
bool has_plain_zero_gradient(std::string_view op);

// The operator reads the shape and the type of the argument, and no value: a plain tensor may stand there.
bool reads_form_only(std::string_view op, std::string_view argument);

// LibTorch's modules pass plain zeros there.
bool is_zero_by_modules(std::string_view op, std::string_view argument);

// LibTorch's functions pass plain numbers there that follow from shapes: 0, s, 2 s, and so on.
bool is_counted_by_functions(std::string_view op, std::string_view argument);

// The types of the results after the first are those of a device, which a run on shapes alone does not know.
bool has_types_by_device(std::string_view op);

// The result shares the memory of the argument in all but the schema: composite operators write through it.
bool is_view_anyway(std::string_view op);

}  // namespace meshtorch::internal

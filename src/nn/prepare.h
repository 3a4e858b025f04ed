// What the styles that only convert at a module's edge do to its inputs and outputs, for modules of either
// language.
#pragma once

#include "meshtorch/api.h"
#include "meshtorch/module_hooks.h"
#include "meshtorch/parallel_style.h"

namespace meshtorch::internal {

// `module` is the class of the module, for messages. Values whose names stand in input_kwarg_layouts are
// addressed by name, the others by position.
MESHTORCH_FOR_PYTHON void prepare_inputs(const PrepareInputOptions& options, const std::string& module,
                                         Values& inputs, const DeviceMesh& mesh);
MESHTORCH_FOR_PYTHON void prepare_outputs(const PrepareOutputOptions& options, const std::string& module,
                                          Values& outputs, const DeviceMesh& mesh);

}  // namespace meshtorch::internal

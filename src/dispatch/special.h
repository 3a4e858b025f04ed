// Operators that no rule can describe: data that leaves, mixed copies, reductions that need the global size.
#pragma once

#include <string>

namespace meshtorch {

class Handler;

// What is done for the operator of this name ("_local_scalar_dense"); null for those that have or need no
// special treatment.
void (*special_operator(const std::string& name))(Handler&);

// For out= variants: runs the functional operator, and writes its results.
void write_results(Handler& call);

}  // namespace meshtorch

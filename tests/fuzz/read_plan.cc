// Plans of parallel styles as JSON.
#include "meshtorch/error.h"
#include "meshtorch/parallelize.h"
#include "readers.h"

namespace meshtorch::fuzz {

void read_plan(const std::string& text) try {
  const std::string written = ParallelizePlan::from_json(text).to_json();
  require(ParallelizePlan::from_json(written).to_json() == written, "a plan reads back as another");
} catch (const AssertionError&) {  // a style that contradicts itself, in PyTorch's words
}

}  // namespace meshtorch::fuzz

// Plans of parallel styles as JSON.
#include "meshtorch/parallelize.h"
#include "readers.h"

namespace meshtorch::fuzz {

void read_plan(const std::string& text) {
  const std::string written = ParallelizePlan::from_json(text).to_json();
  require(ParallelizePlan::from_json(written).to_json() == written, "a plan reads back as another");
}

}  // namespace meshtorch::fuzz

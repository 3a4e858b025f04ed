// How much ranks compare.
#include "signature/agreement_level.h"

#include <c10/util/Exception.h>

#include <cstdlib>

namespace meshtorch::internal {

const char* to_string(Agreement level) {
  switch (level) {
    case Agreement::off:
      return "off";
    case Agreement::calls:
      return "calls";
    case Agreement::on:
      return "on";
    default:
      return "full";
  }
}

Agreement agreement_named(const std::string& name, const char* source) {
  for (const Agreement level : {Agreement::off, Agreement::calls, Agreement::on, Agreement::full}) {
    if (name == to_string(level)) return level;
  }
  TORCH_CHECK_VALUE(false, "meshtorch: there is no level of agreement \"", name, "\"\n  in: ", source,
                    "\n  do: give off, calls, on or full");
}

Agreement agreement_level(std::optional<Agreement> given) {
  if (given) return *given;
  const char* variable = std::getenv("MESHTORCH_AGREEMENT");
  if (variable == nullptr || *variable == '\0') return Agreement::on;
  return agreement_named(variable, "MESHTORCH_AGREEMENT");
}

}  // namespace meshtorch::internal

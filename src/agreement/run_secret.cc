// The secret of a run.
#include "agreement/run_secret.h"

#include <cstdio>
#include <cstdlib>

#include "signature/call_hash.h"

namespace meshtorch::internal {

std::uint64_t secret_number(const std::string& purpose) {
  const char* secret = std::getenv("MESHTORCH_SECRET");
  if (secret == nullptr || *secret == '\0') return 0;
  CallHash hash;
  for (int round = 0; round < 16; ++round) {
    hash.add(std::string_view(secret));
    hash.add(std::string_view(purpose));
  }
  return hash.short_form();
}

std::string secret_text(const std::string& purpose) {
  const std::uint64_t number = secret_number(purpose);
  if (number == 0) return "none";
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
  return text;
}

}  // namespace meshtorch::internal

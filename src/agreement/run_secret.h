// The secret of a run, which its launcher gives to its ranks and to nobody else: MESHTORCH_SECRET.
#pragma once

#include <cstdint>
#include <string>

namespace meshtorch::internal {

// A number made of the secret for one purpose, from which neither the secret nor the number for another
// purpose is easily found; 0 if there is no secret.
std::uint64_t secret_number(const std::string& purpose);
// The same as text, "none" if there is no secret.
std::string secret_text(const std::string& purpose);

}  // namespace meshtorch::internal

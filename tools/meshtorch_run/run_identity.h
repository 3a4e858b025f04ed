// What tells the processes of one run from all others: an identity that they inherit, and a secret that they
// share.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace meshtorch::run {

// In the environment, which only processes of the same user can read, and not in the arguments, which all
// can.
inline constexpr const char* kIdentityVariable = "MESHTORCH_RUN_ID";
inline constexpr const char* kSecretVariable = "MESHTORCH_SECRET";

// 128 random bits in hexadecimal.
std::string random_identity();

// The processes that were started with this identity in their environment, whatever became of their parents,
// sessions and process groups.
std::vector<pid_t> processes_of_run(const std::string& identity);

}  // namespace meshtorch::run

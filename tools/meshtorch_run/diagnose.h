// What the flight records of a run's ranks say went wrong.
#pragma once

#include <string>

namespace meshtorch::run {

// Compares the records rank_*.json of a directory: one sentence, and below it what each rank did last.
// Throws std::runtime_error, whose text is the whole message, if there are none or one cannot be read.
std::string diagnose(const std::string& directory);

}  // namespace meshtorch::run

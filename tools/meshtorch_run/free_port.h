// Finds the port at which the ranks of a single machine meet.
#pragma once

namespace meshtorch::run {

// A TCP port that is free on the loopback interface now. Throws std::system_error.
int find_free_port();

}  // namespace meshtorch::run

// What can go wrong between ranks in a collective: rank 1 is the one at fault in each.
#pragma once

#include <string>
#include <vector>

namespace meshtorch::testing {

constexpr int kRanks = 3;
constexpr int kGuilty = 1;

// Ranks that call something else than the others.
const std::vector<std::string>& disagreements();
// Makes this rank's call; returns what was thrown, empty if nothing was.
std::string play_disagreement(const std::string& event, int rank);
// The same of calls that send nothing, in a world that compares in full.
const std::vector<std::string>& silent_disagreements();
std::string play_silent_disagreement(const std::string& event, int rank);
// True if the ranks can still reduce.
bool can_go_on();

// Ranks that do not come. `play_absence` returns what an innocent rank was told; the guilty one does not
// return from some.
const std::vector<std::string>& absences();
std::string play_absence(const std::string& event, int rank);
// A part of what the others are told: why the rank went.
std::string words_of(const std::string& absence);

}  // namespace meshtorch::testing

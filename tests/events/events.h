// What can go wrong between ranks in a collective: rank 1 is the one at fault in each.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace meshtorch::testing {

constexpr int kRanks = 3;
constexpr int kGuilty = 1;

// What was thrown, without where; empty if nothing was.
std::string thrown_by(const std::function<void()>& call);

// Ranks that call something else than the others.
const std::vector<std::string>& disagreements();
// Makes this rank's call; returns what was thrown, empty if nothing was.
std::string play_disagreement(const std::string& event, int rank);
// The same of calls that send nothing, and of the next collective.
const std::vector<std::string>& silent_disagreements();
std::string play_silent_disagreement(const std::string& event, int rank);
// The same of calls of operators that fail by the data of the guilty rank, on backends whose ranks meet later
// than they call.
const std::vector<std::string>& disagreements_of_data();
std::string play_disagreement_of_data(const std::string& event, int rank);
// The same of calls that only the modules they are in tell apart, in a world that compares in full.
const std::vector<std::string>& disagreements_of_modules();
std::string play_disagreement_of_modules(const std::string& event, int rank);
// The same of equal calls that come from two places of the program, rank 1's from `evaluate` and the others'
// from `train`.
const std::vector<std::string>& disagreements_of_places();
std::string play_disagreement_of_places(const std::string& event, int rank);
// True if the ranks can still reduce.
bool can_go_on();

// Ranks that do not come. `play_absence` returns what an innocent rank was told; the guilty one does not
// return from some.
const std::vector<std::string>& absences();
std::string play_absence(const std::string& event, int rank);
// Rank 0 waits for it only through rank 2, and for a shorter time.
constexpr const char* kStallsBehindAnother = "stalls behind another rank";
// Rank 0, which serves the store, is the one at fault here, and stalls; the others need the store. They know
// its process by the file.
std::string play_stall_of_the_store(const std::string& process_file, int rank, bool is_behind_another);
// A part of what the others are told: why the rank went.
std::string words_of(const std::string& absence);

}  // namespace meshtorch::testing

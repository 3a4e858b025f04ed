// Ranks that exchange texts and agree on failures while they save and load.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/plan/index.h"

namespace meshtorch::checkpoint::internal {

// Every rank's text, on every rank.
using Gather = std::function<std::vector<std::string>(const std::string& mine)>;

// This rank among all; 0 of 1 in a process that has joined no world.
int this_rank();

// By a collective of all ranks: to be called where the rank may call collectives. Throws NotImplementedError
// in a world of fake ranks.
Gather gather_by_collective();
// Without collectives, so that another thread may call it while the rank communicates. `meeting` is a name
// that no other exchange has.
Gather gather_by_store(const std::string& meeting);

// Runs `work` on every rank and gives the results of all. If it throws on one rank, all throw: a rank that
// failed its own error, the others that of the first rank that did.
std::vector<Json> run_together(const Gather& gather, const std::function<Json()>& work);

// Checks that throw std::invalid_argument, as ValueError.
void as_value_error(const std::function<void()>& check);

}  // namespace meshtorch::checkpoint::internal

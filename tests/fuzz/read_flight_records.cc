// Flight records as `meshtorch-run --diagnose` compares them.
#include <sstream>

#include "diagnose.h"
#include "folder.h"

namespace meshtorch::fuzz {

void read_flight_records(const std::string& lines) {
  static const Folder folder;
  constexpr int kMostRanks = 3;
  std::istringstream in(lines);
  std::string line;
  for (int rank = 0; rank < kMostRanks; ++rank) {
    const std::string file = "rank_" + std::to_string(rank) + ".json";
    if (std::getline(in, line))
      folder.write(file, line);
    else
      folder.remove(file);
  }
  require(!run::diagnose(folder.path()).empty(), "a diagnosis without words");
}

}  // namespace meshtorch::fuzz

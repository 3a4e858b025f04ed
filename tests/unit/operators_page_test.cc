// The page of operators is made from the table of rules, and must be the one in docs.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "rules/table.h"

namespace meshtorch {
using namespace internal;
namespace {

std::string packet_of(const std::string& overload) { return overload.substr(0, overload.find('.')); }

// Overloads that the test of the whole aten namespace found right without gathering, by how they are covered:
// "decomposed" into operators with rules, or "by hand".
std::map<std::string, std::set<std::string>> tested_packets() {
  std::map<std::string, std::set<std::string>> found;
  std::ifstream file(MESHTORCH_ATEN_OPERATORS);
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    const std::string packet = packet_of(line.substr(0, colon));
    // An in-place operator counts as the one that it is a variant of.
    if (packet.back() != '_') found[line.substr(colon + 2)].insert(packet);
  }
  return found;
}

struct Page {
  std::string text;
  std::size_t covered = 0;  // operators, not overloads
};

Page operators_page() {
  std::set<std::string> packets;
  std::ostringstream rows;
  for (const auto& [name, entry] : rule_table().entries()) {
    packets.insert(packet_of(name));
    rows << "| `" << name << "` | "
         << (entry.describe() == "chosen by shape" ? entry.describe() : "`" + entry.describe() + "`")
         << " |\n";
  }
  const std::size_t with_rule = packets.size();
  std::ostringstream others;
  const auto tested = tested_packets();
  for (const char* kind : {"decomposed", "by hand"}) {
    std::string list;
    int count = 0;
    for (const std::string& packet : tested.contains(kind) ? tested.at(kind) : std::set<std::string>()) {
      if (!packets.insert(packet).second) continue;
      list += (count++ > 0 ? ", `" : "`") + packet + "`";
    }
    others << "\n## Operators " << kind << "\n\n" << count << ": " << list << "\n";
  }
  std::ostringstream page;
  page << "# Operators that run on shards\n\n"
       << "Made by the test `OperatorsPage` from the table of rules and from "
          "`tests/golden/aten_operators`, the "
          "record of the property test with the newest LibTorch; `UPDATE_OPERATORS_PAGE=1` writes it anew. "
       << packets.size() << " operators in all: " << rule_table().entries().size() << " overloads of "
       << with_rule
       << " have a rule, and the others below are decomposed into such operators, or written by hand; the "
          "property test ran each of them on split tensors without the replicating fallback. In-place and "
          "`out=` "
          "variants are not counted. How to read a rule: [rules](rules.md).\n"
       << others.str() << "\n## Operators with a rule\n\n| operator | rule |\n|---|---|\n"
       << rows.str();
  return {page.str(), packets.size()};
}

TEST(OperatorsPage, IsThatOfTheRulesAndOfThePropertyTest) {
  if (std::getenv("UPDATE_OPERATORS_PAGE") != nullptr)
    std::ofstream(MESHTORCH_OPERATORS_PAGE) << operators_page().text;
  std::ifstream file(MESHTORCH_OPERATORS_PAGE);
  std::stringstream written;
  written << file.rdbuf();
  EXPECT_EQ(written.str(), operators_page().text) << "run the unit tests with UPDATE_OPERATORS_PAGE=1";
}

TEST(OperatorsPage, HasAtLeastSevenHundredOperators) { EXPECT_GE(operators_page().covered, 700U); }

}  // namespace
}  // namespace meshtorch

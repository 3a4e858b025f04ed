// The page of operators is made from the table of rules, and must be the one in docs.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "rules/table.h"

namespace meshtorch {
namespace {

std::string operators_page() {
  std::set<std::string> packets;
  std::ostringstream rows;
  for (const auto& [name, entry] : rule_table().entries()) {
    packets.insert(name.substr(0, name.find('.')));
    rows << "| `" << name << "` | "
         << (entry.describe() == "chosen by shape" ? entry.describe() : "`" + entry.describe() + "`")
         << " |\n";
  }
  std::ostringstream page;
  page << "# Operators with a rule\n\n"
       << "Made from the table of rules by the test `OperatorsPage`; `UPDATE_OPERATORS_PAGE=1` writes it "
          "anew. "
       << rule_table().entries().size() << " overloads of " << packets.size()
       << " operators; in-place and `out=` variants are paired with them by their schemas. How to read a "
          "rule: [rules](rules.md).\n\n"
       << "| operator | rule |\n|---|---|\n"
       << rows.str();
  return page.str();
}

TEST(OperatorsPage, IsThatOfTheTableOfRules) {
  if (std::getenv("UPDATE_OPERATORS_PAGE") != nullptr)
    std::ofstream(MESHTORCH_OPERATORS_PAGE) << operators_page();
  std::ifstream file(MESHTORCH_OPERATORS_PAGE);
  std::stringstream written;
  written << file.rdbuf();
  EXPECT_EQ(written.str(), operators_page()) << "run the unit tests with UPDATE_OPERATORS_PAGE=1";
}

}  // namespace
}  // namespace meshtorch

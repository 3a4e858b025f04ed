// Every operator of the aten namespace, with drawn arguments, meshes and placements, against the plain call.
//   MESHTORCH_PROPERTY_SEED=7 MESHTORCH_PROPERTY_CASES=50   other and more draws for each operator
//   MESHTORCH_PROPERTY_OPERATORS='linalg_.*'                only these
//   MESHTORCH_PROPERTY_CASE='mm: f[5,4], f[4,6] | 2 | S(0), R | P'   this one call, as a failure prints it
//   MESHTORCH_PROPERTY_TRACE=file                           each call before it runs: the last one has
//   crashed
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <regex>
#include <sstream>

#include "../dist/samples.h"
#include "draw_call.h"
#include "operator/operator.h"

namespace meshtorch::testing {
using namespace internal;
namespace {

constexpr int kCases = 2;  // for each operator, in the normal run

std::string setting(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

// The same on every platform, so that each operator has draws of its own that others do not disturb.
std::uint32_t seed_of(const std::string& name, std::uint32_t seed) {
  std::uint32_t hash = 2166136261U ^ seed;
  for (const char c : name) hash = (hash ^ static_cast<std::uint8_t>(c)) * 16777619U;
  return hash;
}

// Of a line: LibTorch goes on with lists of all that is registered.
std::string first_sentence(const std::string& text) {
  const std::string line = text.substr(0, text.find('\n'));
  return line.substr(0, line.find(". "));
}

// What was seen of one operator.
struct Record {
  int right = 0, refused = 0, wrong = 0;
  bool ran_split = false;       // some tensor was split, and every operator inside had a rule
  bool was_replicated = false;  // some operator inside had none
  std::string refusal;
};

bool is_split(const PlacedCall& placed) {
  for (const mt::Placements& placements : placed.placements) {
    for (const mt::Placement& p : placements) {
      if (!p.is_replicate()) return true;
    }
  }
  return false;
}

void try_call(const DrawnCall& drawn, Random& random, std::uint32_t seed, Record& record) {
  const PlacedCall placed = draw_placements(drawn, random);
  const Verdict verdict = judge(placed, drawn.expected);
  switch (verdict.kind) {
    case Verdict::Kind::right:
      ++record.right;
      (verdict.is_replicated ? record.was_replicated : record.ran_split) |= is_split(placed);
      break;
    case Verdict::Kind::refused:
      ++record.refused;
      record.refusal = first_sentence(verdict.what);
      break;
    case Verdict::Kind::wrong:
      ++record.wrong;
      const PlacedCall minimal = shrunk(placed);
      const auto expected = plain_run(minimal.call);
      ADD_FAILURE() << "seed " << seed << "\n  " << minimal.to_string() << "\n  drawn: " << placed.to_string()
                    << "\n  " << judge(minimal, *expected).what;
  }
}

// How the operator is covered, in a few words.
std::string coverage(const c10::OperatorHandle& op, const Record& record) {
  if (record.wrong > 0) return "wrong";
  if (record.right + record.refused == 0) {
    const std::string reason = reason_not_to_draw(name_of(op.operator_name()));
    return "not called: " + (reason.empty() ? "plain LibTorch refused what was drawn" : reason);
  }
  if (record.right == 0) return "refused: " + record.refusal;
  if (!record.ran_split) return record.was_replicated ? "replicated" : "right, never split";
  return describe(operator_info(op));
}

std::vector<c10::OperatorHandle> aten_operators(const std::string& pattern) {
  const std::regex wanted(pattern);
  std::map<std::string, c10::OperatorHandle> found;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (op && name.name.starts_with("aten::") && std::regex_match(name_of(name), wanted))
      found.emplace(name_of(name), *op);
  }
  std::vector<c10::OperatorHandle> sorted;
  for (const auto& [name, op] : found) sorted.push_back(op);
  return sorted;
}

class Property : public ::testing::Test {
 protected:
  void SetUp() override {
    if (ranks_are_processes()) GTEST_SKIP() << "thread ranks only";
  }
};

TEST_F(Property, EveryAtenOperatorIsRightOrRefused) {
  const auto seed = static_cast<std::uint32_t>(std::stoul(setting("MESHTORCH_PROPERTY_SEED", "1")));
  const int cases = std::stoi(setting("MESHTORCH_PROPERTY_CASES", std::to_string(kCases)));
  const std::string pattern = setting("MESHTORCH_PROPERTY_OPERATORS", ".*");
  std::cout << "seed " << seed << ", " << cases << " cases for each operator" << std::endl;
  const bool is_normal_run = seed == 1 && cases == kCases && pattern == ".*";
  std::ostringstream lines;
  Record total;
  for (const c10::OperatorHandle& op : aten_operators(pattern)) {
    const std::string name = name_of(op.operator_name());
    if (!takes_tensors(op)) {
      lines << name << ": takes no tensor\n";
      continue;
    }
    Random random(seed_of(name, seed));
    Record record;
    for (const DrawnCall& drawn : draw_calls(op, cases, random, !is_normal_run))
      try_call(drawn, random, seed, record);
    lines << name << ": " << coverage(op, record) << "\n";
    total.right += record.right;
    total.refused += record.refused;
    total.wrong += record.wrong;
  }
  std::cout << total.right << " calls right, " << total.refused << " refused, " << total.wrong << " wrong"
            << std::endl;
  const std::string recorded_in =
      std::string(MESHTORCH_ATEN_RECORDS) + "/" + MESHTORCH_LIBTORCH_MINOR + ".txt";
  if (const std::string file = setting("UPDATE_ATEN_OPERATORS", ""); !file.empty())
    std::ofstream(file == "1" ? recorded_in : file) << lines.str();
  EXPECT_EQ(total.wrong, 0);
  if (!is_normal_run) return;
  std::ifstream file(recorded_in);
  if (!file)
    GTEST_SKIP() << "LibTorch " << MESHTORCH_LIBTORCH_MINOR
                 << " has no record; UPDATE_ATEN_OPERATORS=1 writes it";
  std::stringstream written;
  written << file.rdbuf();
  EXPECT_EQ(lines.str(), written.str()) << "if it should have changed, run with UPDATE_ATEN_OPERATORS=1";
}

TEST_F(Property, TheOneCallThatIsAskedFor) {
  const std::string text = setting("MESHTORCH_PROPERTY_CASE", "mm: f[5,4], f[4,6] | 2 | S(0), R | P");
  const PlacedCall placed = PlacedCall::parse(text);
  EXPECT_EQ(placed.to_string(), text);
  const auto expected = plain_run(placed.call);
  ASSERT_TRUE(expected) << "plain LibTorch refuses " << placed.call.to_string();
  const Verdict verdict = judge(placed, *expected);
  EXPECT_EQ(verdict.kind, Verdict::Kind::right) << verdict.what;
}

}  // namespace
}  // namespace meshtorch::testing

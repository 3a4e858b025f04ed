// What is read from files and from users, changed at random: understood or refused with words, never a crash.
#include "../mutations.h"

#include "checkpoint/plan/index.h"
#include "meshtorch/rule_notation.h"
#include "safetensors/header.h"

namespace meshtorch {
using namespace internal;
namespace {

using testing::expect_read_or_refused;

// A file of these tensors.
std::string file_of(std::vector<safetensors::internal::StoredTensor> tensors) {
  const std::string header = safetensors::internal::render_header(tensors, {{"format", "pt"}});
  return header + std::string(tensors.empty() ? 0 : tensors.back().end - header.size(), 'x');
}

TEST(Mutations, OfSafetensorsFilesAreReadOrRefused) {
  const auto read = [](const std::string& file) {
    const auto bytes = std::as_bytes(std::span(file));
    const auto first = bytes.first(std::min<std::size_t>(8, bytes.size()));
    const std::uint64_t begin = safetensors::internal::data_begin("file", first, bytes.size());
    safetensors::internal::parse_header("file", bytes.first(begin), bytes.size());
  };
  const std::string two = file_of({{"a.b", "BF16", {}}, {"c", "I64", {0, 4}}});
  expect_read_or_refused({file_of({}), file_of({{"x", "F32", {2, 3}}}), two}, read);
}

TEST(Mutations, OfCheckpointIndexesAreReadOrRefused) {
  checkpoint::internal::Index index;
  index.generation = 3;
  index.files["data.safetensors"] = {.name = "data.safetensors", .bytes = 40, .checksums = {0x1234, ~0ULL}};
  index.tensors["w"] = {.dtype = "F32", .shape = {4, 2}, .chunks = {{"data.safetensors", {{0, 0}, {4, 2}}}}};
  index.values["optimizer"] = {{"step", 7}};
  expect_read_or_refused(
      {checkpoint::internal::Index().to_text(), index.to_text()},
      [](const std::string& text) { checkpoint::internal::Index::from_text("file", text); });
}

TEST(Mutations, OfRulesAreReadOrRefused) {
  expect_read_or_refused({"*m k, *k n -> m n", "+..., +... -> ...", "a.. s! -> a.. s!", "*v d, i.. -> i.. d"},
                         [](const std::string& text) { detail::RuleParser(text).parse(); });
}

}  // namespace
}  // namespace meshtorch

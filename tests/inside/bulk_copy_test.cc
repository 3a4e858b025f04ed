// Copies of many bytes: the same as copy_stream's, whatever the size and the place.
#include "kernels/bulk_copy.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace meshtorch::testing {
namespace {

using internal::Runs;

constexpr std::size_t kBulkBytes = std::size_t{9} << 20;  // more than the cache of a core

std::vector<char> counted_bytes() {
  std::vector<char> bytes(kBulkBytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31 + i / 251);
  return bytes;
}

// Long runs at odd places, short ones, and none.
std::vector<Runs> odd_runs_of(std::vector<char>& memory) {
  char* data = memory.data();
  return {{data + 3, 70001},
          {data + (1 << 17), 0},
          {data + (1 << 17) + 5, 24, 1000, 40},
          {data + (1 << 18) + 1, 2000, 500, 2048},
          {data + (3 << 20), 4 << 20}};
}

TEST(BulkCopy, IsACopyFromAndToAnyRuns) {
  std::vector<char> source = counted_bytes();
  const std::vector<Runs> from = odd_runs_of(source);
  const std::size_t bytes = internal::bytes_of(from);
  std::vector<char> expected(kBulkBytes), flat(kBulkBytes), second(kBulkBytes), expected_runs(kBulkBytes),
      runs(kBulkBytes);
  internal::copy_stream(internal::RunCursor(from), expected.data() + 7, bytes);
  internal::copy_bulk(from, flat.data() + 7);
  EXPECT_TRUE(flat == expected);

  internal::copy_stream(expected.data() + 7, internal::RunCursor(odd_runs_of(expected_runs)), bytes);
  internal::copy_bulk(flat.data() + 7, odd_runs_of(runs));
  EXPECT_TRUE(runs == expected_runs);

  std::fill(flat.begin(), flat.end(), 0);
  internal::copy_bulk_twice(from, flat.data() + 7, odd_runs_of(second));
  EXPECT_TRUE(flat == expected);
  EXPECT_TRUE(second == expected_runs);
}

TEST(BulkCopy, FewBytesAndNone) {
  std::vector<char> source = counted_bytes();
  for (const std::size_t bytes : {0, 1, 63, 1024, 40000}) {
    const Runs from{source.data() + 1, bytes};
    std::vector<char> first(50000), second(50000), expected(50000);
    std::copy_n(source.begin() + 1, bytes, expected.begin() + 2);
    const Runs to{second.data() + 2, bytes};
    internal::copy_bulk_twice({&from, 1}, first.data() + 2, {&to, 1});
    EXPECT_TRUE(first == expected) << bytes;
    EXPECT_TRUE(second == expected) << bytes;
  }
}

}  // namespace
}  // namespace meshtorch::testing

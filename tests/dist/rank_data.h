// Data that every rank can compute for every other, so that expectations need no communication.
#pragma once

#include "ranks.h"

namespace meshtorch::testing {

inline const std::vector<at::ScalarType> kTypes{at::kFloat, at::kBFloat16, at::kLong, at::kBool};
inline const std::vector<at::ScalarType> kRareTypes{at::kDouble, at::kHalf, at::kShort,
                                                    at::kByte,   at::kInt,  at::kComplexFloat};

inline std::vector<at::ScalarType> all_types() {
  std::vector<at::ScalarType> types = kTypes;
  types.insert(types.end(), kRareTypes.begin(), kRareTypes.end());
  return types;
}

// The tensor of one rank: small whole numbers, so that sums and products are exact in every type.
inline torch::Tensor sample(int rank, at::IntArrayRef sizes, at::ScalarType type = at::kFloat,
                            std::uint64_t seed = 0) {
  auto generator = at::detail::createCPUGenerator(seed * 1000 + static_cast<std::uint64_t>(rank) + 1);
  const bool is_signed = type != at::kByte && type != at::kBool;
  return torch::randint(is_signed ? -3 : 0, type == at::kBool ? 2 : 4, sizes, generator, torch::kLong)
      .to(type);
}

// The tensors of ranks 0 … n - 1, of one shape.
inline std::vector<torch::Tensor> samples(int n, at::IntArrayRef sizes, at::ScalarType type = at::kFloat,
                                          std::uint64_t seed = 0) {
  std::vector<torch::Tensor> all;
  for (int r = 0; r < n; ++r) all.push_back(sample(r, sizes, type, seed));
  return all;
}

// Their reduction, by plain operators.
inline torch::Tensor reduced(const std::vector<torch::Tensor>& terms, const std::string& op) {
  const torch::Tensor rows = torch::stack(terms);
  if (op == "avg") return rows.mean(0);
  if (op == "sum") return rows.scalar_type() == at::kBool ? rows.any(0) : rows.sum(0).to(rows.scalar_type());
  if (op == "product")
    return rows.scalar_type() == at::kBool ? rows.all(0) : rows.prod(0).to(rows.scalar_type());
  if (op == "min") return rows.amin(0);
  if (op == "max") return rows.amax(0);
  torch::Tensor result = terms[0];
  for (std::size_t i = 1; i < terms.size(); ++i) {
    if (op == "band") result = result.bitwise_and(terms[i]);
    if (op == "bor") result = result.bitwise_or(terms[i]);
    if (op == "bxor") result = result.bitwise_xor(terms[i]);
  }
  return result;
}

// The part of one rank of n, the first of them larger where they cannot be equal.
inline torch::Tensor part_of(const torch::Tensor& whole, int rank, int n, std::int64_t dim) {
  const std::int64_t each = (whole.size(dim) + n - 1) / n;
  const std::int64_t begin = std::min(whole.size(dim), each * rank);
  return whole.narrow(dim, begin, std::min(whole.size(dim) - begin, each)).contiguous();
}

// The reductions that a type allows.
inline std::vector<std::string> reductions_of(at::ScalarType type) {
  if (at::isComplexType(type)) return {"sum", "avg"};
  if (at::isFloatingType(type)) return {"sum", "avg", "product", "min", "max"};
  return {"sum", "product", "min", "max", "band", "bor", "bxor"};
}

// A test that runs on 1, 2, 3 and 4 ranks.
class OnRanks : public ::testing::TestWithParam<int> {
 protected:
  // Runs `body` on the ranks, with the trace of a failure saying which.
  static void on_all(const std::function<void(int rank, int n)>& body) {
    const int n = GetParam();
    on_ranks(n, [&](int rank) {
      SCOPED_TRACE("rank " + std::to_string(rank) + " of " + std::to_string(n));
      body(rank, n);
    });
  }
};

inline std::string ranks_in_name(const ::testing::TestParamInfo<int>& info) {
  return std::to_string(info.param) + "Ranks";
}

}  // namespace meshtorch::testing

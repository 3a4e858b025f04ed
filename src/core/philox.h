// Philox4x32-10: four random words as a pure function of a counter and a key. The root of all random numbers
// here. No torch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace meshtorch::internal {

// Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
inline constexpr std::uint32_t kPhiloxMultiplier0 = 0xD2511F53;
inline constexpr std::uint32_t kPhiloxMultiplier1 = 0xCD9E8D57;
inline constexpr std::uint32_t kPhiloxWeyl0 = 0x9E3779B9;
inline constexpr std::uint32_t kPhiloxWeyl1 = 0xBB67AE85;
inline constexpr int kPhiloxRounds = 10;

// The words of `kCount` counters, word by word, so that the compiler can use vector instructions.
template <std::size_t kCount>
struct PhiloxBlock {
  std::uint32_t word[4][kCount];
};

// Replaces the counters of a block by their random words.
template <std::size_t kCount>
inline void philox(PhiloxBlock<kCount>& block, std::uint32_t key0, std::uint32_t key1) {
  auto& [w0, w1, w2, w3] = block.word;
  for (int round = 0; round < kPhiloxRounds; ++round) {
    for (std::size_t i = 0; i < kCount; ++i) {
      const std::uint64_t product0 = static_cast<std::uint64_t>(kPhiloxMultiplier0) * w0[i];
      const std::uint64_t product1 = static_cast<std::uint64_t>(kPhiloxMultiplier1) * w2[i];
      w0[i] = static_cast<std::uint32_t>(product1 >> 32) ^ w1[i] ^ key0;
      w2[i] = static_cast<std::uint32_t>(product0 >> 32) ^ w3[i] ^ key1;
      w1[i] = static_cast<std::uint32_t>(product1);
      w3[i] = static_cast<std::uint32_t>(product0);
    }
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
}

// One random call: all its numbers follow from these two and the global index of the element.
struct RandomCall {
  std::uint64_t seed = 0;
  std::uint64_t number = 0;
};

using RandomWords = std::array<std::uint32_t, 4>;

// The words of the elements with these global indices: the key is the seed, the counter is the index and the
// number of the call.
template <std::size_t kCount>
inline PhiloxBlock<kCount> random_words(const RandomCall& call,
                                        const std::array<std::uint64_t, kCount>& index) {
  PhiloxBlock<kCount> block;
  for (std::size_t i = 0; i < kCount; ++i) {
    block.word[0][i] = static_cast<std::uint32_t>(index[i]);
    block.word[1][i] = static_cast<std::uint32_t>(index[i] >> 32);
    block.word[2][i] = static_cast<std::uint32_t>(call.number);
    block.word[3][i] = static_cast<std::uint32_t>(call.number >> 32);
  }
  philox(block, static_cast<std::uint32_t>(call.seed), static_cast<std::uint32_t>(call.seed >> 32));
  return block;
}

inline RandomWords random_words(const RandomCall& call, std::uint64_t index) {
  const PhiloxBlock<1> block = random_words<1>(call, {index});
  return {block.word[0][0], block.word[1][0], block.word[2][0], block.word[3][0]};
}

}  // namespace meshtorch::internal

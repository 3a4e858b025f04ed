// Who writes what: the largest boxes first, each by the holder that has the least to write so far.
#include "checkpoint/plan/assign.h"

#include <algorithm>
#include <stdexcept>

#include "safetensors/header.h"

namespace meshtorch::checkpoint::internal {
namespace {

// One box, and who could write it.
struct Candidate {
  std::string tensor;
  Box box;
  std::uint64_t bytes = 0;
  std::vector<int> holders;
};

std::string describe(const std::string& dtype, const Shape& shape) {
  return dtype + " " + Box{Shape(shape.size()), shape}.to_string();
}

void check_agreement(const Holding& holding, const AssignedTensor& known, std::size_t rank) {
  if (holding.dtype == known.dtype && holding.shape == known.shape) return;
  throw std::invalid_argument("meshtorch: the ranks disagree on tensor \"" + holding.name +
                              "\": " + describe(known.dtype, known.shape) + " before, " +
                              describe(holding.dtype, holding.shape) + " on rank " + std::to_string(rank) +
                              "\n  in: saving it\n  do: give the same global tensor on every rank");
}

void check_complete(const std::string& name, const AssignedTensor& tensor) {
  std::int64_t held = 0;
  for (const OwnedBox& owned : tensor.boxes) held += owned.box.count();
  const std::int64_t all = Box{tensor.shape, tensor.shape}.count();
  if (held == all) return;
  throw std::invalid_argument("meshtorch: the ranks hold " + std::to_string(held) + " elements of tensor \"" +
                              name + "\", which has " + std::to_string(all) +
                              "\n  in: saving it\n  do: save with all ranks of its mesh, with one layout");
}

}  // namespace

Assignment assign(const std::vector<std::vector<Holding>>& of_ranks) {
  Assignment assignment;
  std::map<std::pair<std::string, Box>, Candidate> candidates;
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    for (const Holding& holding : of_ranks[rank]) {
      const auto known =
          assignment.try_emplace(holding.name, AssignedTensor{holding.dtype, holding.shape, {}});
      check_agreement(holding, known.first->second, rank);
      for (const Box& box : holding.boxes) {
        Candidate& candidate = candidates[{holding.name, box}];
        candidate.tensor = holding.name;
        candidate.box = box;
        candidate.bytes =
            static_cast<std::uint64_t>(box.count()) * safetensors::internal::item_size(holding.dtype);
        candidate.holders.push_back(static_cast<int>(rank));
      }
    }
  }
  std::vector<const Candidate*> by_size;
  for (const auto& [key, candidate] : candidates) by_size.push_back(&candidate);
  std::stable_sort(by_size.begin(), by_size.end(),
                   [](const Candidate* a, const Candidate* b) { return a->bytes > b->bytes; });
  std::vector<std::uint64_t> load(of_ranks.size());
  const auto load_of = [&](int rank) -> std::uint64_t& { return load[static_cast<std::size_t>(rank)]; };
  for (const Candidate* candidate : by_size) {
    const int owner = *std::min_element(candidate->holders.begin(), candidate->holders.end(),
                                        [&](int a, int b) { return load_of(a) < load_of(b); });
    load_of(owner) += candidate->bytes;
    assignment.at(candidate->tensor).boxes.push_back({candidate->box, owner});
  }
  for (auto& [name, tensor] : assignment) {
    std::sort(tensor.boxes.begin(), tensor.boxes.end(),
              [](const OwnedBox& a, const OwnedBox& b) { return a.box < b.box; });
    check_complete(name, tensor);
  }
  return assignment;
}

}  // namespace meshtorch::checkpoint::internal

// The order of a sequence that is split so that causal attention is equal work for all ranks: each has a
// piece from the front and one from the back.
#pragma once

#include <vector>

#include "core/shard.h"

namespace meshtorch::internal {

// The sequence is cut into equal pieces; piece i and piece pieces - 1 - i follow one another. No order: 0.
struct SequenceOrder {
  std::int64_t pieces = 0;

  bool is_natural() const { return pieces == 0; }
  // The positions in the sequence of these indices of the reordered one. Throws ValueError if the pieces are
  // not equal.
  std::vector<Range> positions(const std::vector<Range>& indices, std::int64_t size) const;
  // For each index of the reordered sequence its position.
  std::vector<std::int64_t> permutation(std::int64_t size) const;
};

// The order of the sequences that attention meets on this thread.
class OrderScope {
 public:
  explicit OrderScope(SequenceOrder order) : outer_(current_) { current_ = order; }
  ~OrderScope() { current_ = outer_; }
  OrderScope(const OrderScope&) = delete;
  OrderScope& operator=(const OrderScope&) = delete;

  static SequenceOrder current() { return current_; }

 private:
  SequenceOrder outer_;
  inline static thread_local SequenceOrder current_{};
};

}  // namespace meshtorch::internal

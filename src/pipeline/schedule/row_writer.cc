// Writes a row of a schedule.
#include "pipeline/schedule/families.h"

namespace meshtorch::internal {

using Kind = PipelineAction::Kind;

bool RowWriter::add(Kind kind, int stage, int& next, bool overlaps_next) {
  const int microbatch = next++;
  if (microbatch >= microbatches_) return false;
  row.push_back({.kind = kind, .stage = stage, .microbatch = microbatch, .overlaps_next = overlaps_next});
  return true;
}

void RowWriter::forward(int stage, bool overlaps_next) {
  add(Kind::forward, stage, count(forwards_, stage), overlaps_next);
}

void RowWriter::backward(int stage) {
  ++count(weights_, stage);
  add(Kind::backward, stage, count(inputs_, stage));
}

void RowWriter::backward_input(int stage) {
  if (add(Kind::backward_input, stage, count(inputs_, stage))) stages_without_weight_.push_back(stage);
}

void RowWriter::backward_weight(int stage) { add(Kind::backward_weight, stage, count(weights_, stage)); }

bool RowWriter::oldest_weight() {
  if (stages_without_weight_.empty()) return false;
  backward_weight(stages_without_weight_.front());
  stages_without_weight_.pop_front();
  return true;
}

}  // namespace meshtorch::internal

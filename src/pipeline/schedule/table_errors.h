// Where in a table a mistake is. No torch.
#pragma once

#include <cstddef>
#include <string>

#include "meshtorch/pipeline_schedule.h"

namespace meshtorch::internal {

// "\n  in: row 1 (rank 1), column 3", both counted from 0.
inline std::string place_text(std::size_t row, std::size_t column) {
  return "\n  in: row " + std::to_string(row) + " (rank " + std::to_string(row) + "), column " +
         std::to_string(column);
}

// The column of the CSV format that holds the action at `index` of a row: an overlapped pair is one entry.
inline std::size_t column_of(const std::vector<PipelineAction>& row, std::size_t index) {
  std::size_t column = index;
  for (std::size_t i = 0; i < index; ++i) column -= row[i].overlaps_next ? 1 : 0;
  return column;
}

}  // namespace meshtorch::internal

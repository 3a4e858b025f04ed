// Prints the tables that are asked for on the standard input, one request a line: schedule, ranks,
// micro-batches, stages on a rank. Each is followed by a line "end"; a size that does not exist is a line
// "refused".
#include <meshtorch/pipeline_schedule.h>

#include <iostream>
#include <stdexcept>

int main() {
  std::string name;
  for (meshtorch::PipelineSize size;
       std::cin >> name >> size.ranks >> size.microbatches >> size.stages_per_rank;) {
    try {
      std::cout << meshtorch::make_pipeline_table(name, size).to_csv();
    } catch (const std::invalid_argument&) {
      std::cout << "refused\n";
    }
    std::cout << "end\n";
  }
}

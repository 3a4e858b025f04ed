// Tables of pipeline schedules: what is read is written back alike, and what passes the proof can run.
#include "meshtorch/pipeline_schedule.h"
#include "readers.h"

namespace meshtorch::fuzz {

void read_pipeline_table(const std::string& text) {
  const PipelineTable table = PipelineTable::from_csv(text);
  require(PipelineTable::from_csv(table.to_csv()) == table, "a table reads back as another");
  const PipelineProof proof = prove(table, {.message = 0.5});
  require(proof.seconds >= 0, "a table takes less than no time");
  require(prove(add_messages(table)).stages == proof.stages, "messages change the number of stages");
}

}  // namespace meshtorch::fuzz

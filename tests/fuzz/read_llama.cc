// What the Llama example reads: the config.json of a model, and the log of a training that goes on.
#include "config.h"
#include "readers.h"
#include "records.h"

namespace meshtorch::fuzz {

void read_llama_config(const std::string& text) {
  const std::string written = llama::Config::from_json(text, "config.json").to_json();
  require(llama::Config::from_json(written, "config.json").to_json() == written,
          "a configuration reads back as another");
}

void read_training_log(const std::string& line) {
  const std::string written = llama::to_json_line(llama::step_record_from_json(line));
  require(llama::to_json_line(llama::step_record_from_json(written)) == written,
          "a record reads back as another");
}

}  // namespace meshtorch::fuzz

// The entry of libFuzzer: gives its inputs to the reader that MESHTORCH_FUZZ names.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>

#include "readers.h"

namespace meshtorch::fuzz {
namespace {

using Reader = void (*)(const std::string&);

Reader chosen_reader() {
#ifdef MESHTORCH_FUZZ_PLANS
  const std::map<std::string, Reader> readers{{"plan", read_plan}};
#else
  const std::map<std::string, Reader> readers{
      {"safetensors", read_safetensors},           {"model_index", read_model_index},
      {"checkpoint_index", read_checkpoint_index}, {"rule", read_rule},
      {"llama_config", read_llama_config},         {"flight_records", read_flight_records},
      {"training_log", read_training_log},         {"dcp_metadata", read_dcp_metadata},
      {"pipeline_table", read_pipeline_table}};
#endif
  const char* name = std::getenv("MESHTORCH_FUZZ");
  const auto found = readers.find(name == nullptr ? "" : name);
  if (found != readers.end()) return found->second;
  std::fputs("meshtorch: MESHTORCH_FUZZ names no reader; do: set it to one of", stderr);
  for (const auto& [known, reader] : readers) std::fprintf(stderr, " %s", known.c_str());
  std::fputs("\n", stderr);
  std::exit(2);
}

}  // namespace

void require(bool holds, const char* words) {
  if (holds) return;
  std::fprintf(stderr, "meshtorch: %s\n", words);
  std::abort();
}

}  // namespace meshtorch::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto read = meshtorch::fuzz::chosen_reader();
  try {
    read(std::string(reinterpret_cast<const char*>(data), size));
  } catch (const std::exception& error) {
    const std::string words = error.what();
    // Their last part is missing where another wrote them, and where a name in them ends the text.
    if (words.find("\n  do: ") == std::string::npos) {
      std::fprintf(stderr, "%s\n", words.c_str());
      meshtorch::fuzz::require(false, "this error does not say what to do");
    }
  }
  return 0;
}

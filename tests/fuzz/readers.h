// What is read from outside and needs no torch, each reader as a function of bytes that nobody has checked.
#pragma once

#include <string>

namespace meshtorch::fuzz {

// Each reads the bytes, or throws words that are ours. What was read is used: written again, read again.
void read_safetensors(const std::string& bytes);
void read_model_index(const std::string& text);
void read_checkpoint_index(const std::string& text);
void read_rule(const std::string& text);
void read_llama_config(const std::string& text);
void read_training_log(const std::string& line);
void read_flight_records(const std::string& lines);  // one rank a line
void read_dcp_metadata(const std::string& bytes);
void read_pipeline_table(const std::string& text);
void read_plan(const std::string& text);

// Ends the process with these words unless `holds`: the fuzzer keeps the input.
void require(bool holds, const char* words);

}  // namespace meshtorch::fuzz

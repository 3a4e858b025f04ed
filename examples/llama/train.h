// A whole training: start or resume, steps, checkpoints, and what is told of them.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "records.h"
#include "trainer.h"

namespace llama {

// A Llama of bytes that learns on a laptop.
Config small_config();

struct TrainOptions {
  // The text to learn, as read_tokens reads it, in windows of sequence_length.
  std::string data;
  std::int64_t sequence_length = 128;
  std::int64_t steps = 300;  // of the whole training, steps before a resume included
  TrainerOptions trainer = {};

  // The weights to start from: a directory in Hugging Face's format, or, if empty, random ones.
  std::string model = {};
  Config new_model = small_config();
  std::string dtype = "float32";  // of the parameters; "bfloat16": float32 with activations in bfloat16
  std::uint64_t seed = 1;         // of the weights and of the order of the data

  // What is kept. Empty: nothing.
  std::string checkpoint = {};
  std::int64_t checkpoint_every = 0;  // steps; 0: at the end only
  bool resume = false;
  std::int64_t stop_after = 0;  // end this run after that step, as if interrupted; 0: after the last
  std::string export_to = {};   // the trained model in Hugging Face's format
  std::string log = {};
  std::string svg = {};
  std::string trace = {};
  std::string report =
      {};  // a page for a browser; written at the end, and when the run is interrupted or fails
  bool comm_table = false;
  bool is_terminal = false;      // a bar that stays in its line, else
  std::int64_t print_every = 0;  // a line after so many steps; 0: about 20 lines in all
};

struct Training {
  Llama model = nullptr;
  std::vector<StepRecord> records;
};

// Trains on `mesh`; all ranks call it, and rank 0 writes to `out`. A loss or gradient that is not finite ends
// it with an error; with a checkpoint, the state before that step is then in "<checkpoint>-not-finite".
Training train(const TrainOptions& options, const meshtorch::DeviceMesh& mesh, std::ostream& out);

}  // namespace llama

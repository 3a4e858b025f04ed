// Pipeline schedules as tables: a row for each rank, an entry for each action. No torch.
//
//   PipelineTable table = make_pipeline_table("1F1B", {.ranks = 4, .microbatches = 8});
//   PipelineProof proof = prove(table);  // throws if the table is wrong, and names row and column
//   proof.peak_activations[0];           // 4: micro-batches whose activations rank 0 holds at once
//   table.to_csv();                      // "0F0,0F1,0F2,0F3,0B0,…", the format of PyTorch
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "meshtorch/api.h"

namespace meshtorch {

// What one rank does in one step of the table.
struct MESHTORCH_API PipelineAction {
  enum class Kind : std::uint8_t {
    idle,              // an empty entry
    forward,           // F
    backward,          // B, both halves
    backward_input,    // I, the gradient of the stage's input
    backward_weight,   // W, the gradients of the parameters
    send_forward,      // SEND_F, the stage's output to the next stage
    receive_forward,   // RECV_F, the stage's input
    send_backward,     // SEND_B, the gradient of the stage's input to the previous stage
    receive_backward,  // RECV_B, the gradient of the stage's output
    unshard,           // UNSHARD, gathers the parameters of fully_shard; it has no micro-batch
    reshard,           // RESHARD, frees them
    reduce_gradients,  // REDUCE_GRAD, after the stage's last backward
  };
  Kind kind = Kind::idle;
  int stage = 0;
  int microbatch = -1;  // -1 if the kind has none
  // On a forward: it may run at the same time as the backward that follows it (OVERLAP_F_B).
  bool overlaps_next = false;

  // "2F0", "3SEND_F1", "1UNSHARD"; empty if idle.
  std::string to_string() const;
  friend bool operator==(const PipelineAction&, const PipelineAction&) = default;
};

// A schedule: a row of actions for each rank.
struct MESHTORCH_API PipelineTable {
  std::vector<std::vector<PipelineAction>> rows;  // one for each rank

  // The format of torch.distributed.pipelining: a line for each rank, an entry for each step.
  std::string to_csv() const;
  // Throws std::invalid_argument that names row and column of an entry that is no action.
  static PipelineTable from_csv(std::string_view text);
  friend bool operator==(const PipelineTable&, const PipelineTable&) = default;
};

// Seconds of one stage and one micro-batch. A backward takes both halves.
struct PipelineTimes {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  double message = 0;  // from the end of an action to where another rank can use its result
};

// An action and the time at which it runs.
struct PlannedAction {
  PipelineAction action;
  double begin = 0;
  double end = 0;
};

// What a table promises.
struct PipelineProof {
  int stages = 0;
  int microbatches = 0;
  std::vector<int> rank_of_stage = {};
  double seconds = 0;
  // By rank: seconds without work between its first and its last action.
  std::vector<double> idle = {};
  // By rank: the most pairs of stage and micro-batch whose activations are alive at once. They live from
  // the begin of F to the end of B or W.
  std::vector<int> peak_activations = {};
  std::vector<std::vector<PlannedAction>> timeline = {};  // by rank
};

// Checks that each stage is on one rank and runs each micro-batch once in each direction, that every action
// comes after those it needs, that messages match and parameters are gathered where the table says so, and
// that the table ends whether messages wait for their receiver or not. A table without messages is checked
// as add_messages completes it. Throws std::invalid_argument that names row and column of the mistake.
MESHTORCH_API PipelineProof prove(const PipelineTable& table, const PipelineTimes& times = {});

// The table with a send and a receive where neighbouring stages are on different ranks. All messages have
// one order that every row keeps, so that no buffering is needed. Throws if the table cannot run.
MESHTORCH_API PipelineTable add_messages(const PipelineTable& table, const PipelineTimes& times = {});
// The table with unshard, reshard and reduce_gradients for fully_shard: a rank gathers the parameters of the
// next `max_active` stages that it runs.
MESHTORCH_API PipelineTable add_gathers(const PipelineTable& table, int max_active = 3);

// How large a schedule is.
struct PipelineSize {
  int ranks = 1;
  int microbatches = 1;
  int stages_per_rank = 0;  // 0: the fewest that the schedule allows
};

// "GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "ZBH1", "InterleavedZeroBubble", "ZBVZeroBubble",
// "DualPipeV", "VHalf", "VMin".
MESHTORCH_API const std::vector<std::string>& pipeline_schedule_names();

// The table of a schedule, without messages; the name may be in upper or lower case. The schedules that
// PyTorch has are in its order. Throws std::invalid_argument if the schedule does not exist in this size.
MESHTORCH_API PipelineTable make_pipeline_table(std::string_view name, const PipelineSize& size);

// The schedule that best_pipeline_table chose.
struct PipelineChoice {
  std::string schedule;
  PipelineTable table;
  PipelineProof proof;
  double peak_activations = 0;  // in the unit of `max_activations`
};

// The table with the smallest time among all schedules whose ranks hold at most `max_activations`. `times`
// are those of the 1/ranks of the model that one rank has, and the unit of activations is what one
// micro-batch leaves in it: 1F1B needs one for each rank. Throws std::invalid_argument if no schedule needs
// so little.
MESHTORCH_API PipelineChoice best_pipeline_table(int ranks, int microbatches, const PipelineTimes& times,
                                                 double max_activations);

}  // namespace meshtorch

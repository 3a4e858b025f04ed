// meshtorch-llama train: options of the command line.
#include <meshtorch/checkpoint.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <iostream>

#include "commands.h"
#include "number_options.h"
#include "train.h"

namespace llama {
namespace {

struct TrainCommandOptions {
  TrainOptions train = {};
  RankOptions ranks = {};
  std::string config;
  std::string resume;  // "auto", or empty
  std::int64_t warmup = -1;
};

void run_train(TrainCommandOptions options) {
  TrainOptions& train_options = options.train;
  if (!options.config.empty()) train_options.new_model = Config::from_path(options.config);
  Config& config = train_options.new_model;
  config.settle_heads({.source = "options --hidden-size, --heads and --kv-heads",
                       .multiple_of_heads = "make --hidden-size a multiple of --heads",
                       .multiple_of_kv_heads = "make --heads a multiple of --kv-heads",
                       .even_heads = "make --hidden-size an even multiple of --heads"});
  config.max_positions = std::max(config.max_positions, train_options.sequence_length);
  TrainerOptions& trainer = train_options.trainer;
  trainer.bfloat16 = train_options.dtype == "bfloat16";
  trainer.learning_rate.total_steps = train_options.steps;
  trainer.learning_rate.warmup_steps = options.warmup < 0 ? train_options.steps / 20 : options.warmup;
  train_options.is_terminal = isatty(STDOUT_FILENO) == 1;
  on_ranks(options.ranks, [&](const meshtorch::DeviceMesh& mesh) { train(train_options, mesh, std::cout); });
}

void add_model_options(CLI::App& command, TrainCommandOptions& options) {
  Config& config = options.train.new_model;
  config.head_dim = 0;
  auto* model = command.add_option("--model", options.train.model,
                                   "start from the weights of this directory, in Hugging Face's format");
  auto* file = command
                   .add_option("--config", options.config,
                               "config.json of a new model with random weights, the same on any mesh")
                   ->excludes(model);
  const auto size = [&](const char* name, std::int64_t& value, std::int64_t most, const char* what) {
    command.add_option(name, value, what)
        ->capture_default_str()
        ->check(number_from<std::int64_t>(1, most))
        ->excludes(model)
        ->excludes(file)
        ->group("Size of a new model");
  };
  size("--vocab-size", config.vocab_size, kMaxVocabulary, "tokens; 256 are bytes");
  size("--hidden-size", config.hidden_size, kMaxWidth, "width");
  size("--intermediate-size", config.intermediate_size, kMaxWidth, "width inside the MLP");
  size("--layers", config.num_layers, kMaxLayers, "number of layers");
  size("--heads", config.num_heads, kMaxWidth, "heads of queries");
  size("--kv-heads", config.num_kv_heads, kMaxWidth, "heads of keys and values");
  command.add_flag("--tied", config.tie_word_embeddings, "the embedding is the output layer too")
      ->excludes(model)
      ->excludes(file)
      ->group("Size of a new model");
}

void add_step_options(CLI::App& command, TrainCommandOptions& options) {
  TrainOptions& train_options = options.train;
  TrainerOptions& trainer = train_options.trainer;
  const auto option = [&](const char* name, auto& value, const char* what) {
    return command.add_option(name, value, what)->capture_default_str();
  };
  const auto at_least_one = number_from<std::int64_t>(1), at_least_zero = number_from<std::int64_t>(0);
  const auto rate = number_from<double>(0);
  option("--steps", train_options.steps, "steps of the whole training")->check(at_least_zero);
  option("--batch-size", trainer.batch_size, "rows of a step, over all ranks")->check(at_least_one);
  option("--sequence-length", train_options.sequence_length, "tokens of a row")
      ->check(number_from<std::int64_t>(1, kMaxPositions));
  option("--accumulate", trainer.accumulate, "cut the rows of a step into parts, one after the other")
      ->check(at_least_one);
  option("--learning-rate", trainer.learning_rate.peak, "at the peak")->check(rate);
  option("--final-learning-rate", trainer.learning_rate.final_fraction, "at the end, as a part of the peak")
      ->check(rate);
  command.add_option("--warmup", options.warmup, "steps of linear warm-up; default: a twentieth of all")
      ->check(at_least_zero);
  option("--weight-decay", trainer.weight_decay, "of matrices")->check(rate);
  option("--beta1", trainer.beta1, "of AdamW")->check(number_below_one());
  option("--beta2", trainer.beta2, "of AdamW")->check(number_below_one());
  option("--clip", trainer.max_gradient_norm, "largest norm of all gradients together; 0: no limit")
      ->check(rate);
  command
      .add_option("--dtype", train_options.dtype,
                  "float32, float64, or bfloat16: activations in bfloat16, parameters in float32")
      ->capture_default_str()
      ->check(CLI::IsMember({"float32", "float64", "bfloat16"}));
  option("--seed", train_options.seed, "of the weights and of the order of the data")
      ->check(number_from<std::uint64_t>(0));
}

void add_output_options(CLI::App& command, TrainOptions& options, std::string& resume) {
  auto* checkpoint =
      command.add_option("--checkpoint", options.checkpoint, "directory for the state of the training");
  command.add_option("--checkpoint-every", options.checkpoint_every, "steps; default: at the end only")
      ->check(number_from<std::int64_t>(1))
      ->needs(checkpoint);
  command
      .add_option(
          "--resume", resume,
          "go on from --checkpoint, on this mesh, whatever mesh it was written on; with `auto`, if there "
          "is one: for meshtorch-run --max-restarts")
      ->expected(0, 1)
      ->check(CLI::IsMember({"auto"}))
      ->needs(checkpoint);
  command
      .add_option("--stop-after", options.stop_after,
                  "end this run after that step, with a checkpoint, as if interrupted")
      ->check(number_from<std::int64_t>(1));
  command.add_option("--export", options.export_to,
                     "write the trained model here, in Hugging Face's format, for `generate`");
  command.add_option("--log", options.log, "write each step's numbers here, one JSON object a line");
  command.add_option("--svg", options.svg, "draw the loss curve here");
  command.add_option("--trace", options.trace,
                     "write a trace of two steps on all ranks here, or of one if there are no more, for "
                     "ui.perfetto.dev or chrome://tracing");
  command.add_option(
      "--report", options.report,
      "write a page for a browser here: mesh, modules, communication, time, loss, memory; also when "
      "interrupted");
  command.add_flag("--comm-table", options.comm_table, "show what one step communicates, by module");
  command
      .add_option("--print-every", options.print_every,
                  "steps between lines where there is no terminal; default: about 20 lines in all")
      ->check(number_from<std::int64_t>(0));
}

}  // namespace

void add_train(CLI::App& app) {
  auto options = std::make_shared<TrainCommandOptions>();
  CLI::App* command = app.add_subcommand("train", "Train a model, from random weights or a checkpoint.");
  command
      ->add_option("--data", options->train.data,
                   "the text to learn, a token a byte; or, if its name ends in .ids, numbers of tokens")
      ->required();
  add_model_options(*command, *options);
  add_step_options(*command, *options);
  add_output_options(*command, options->train, options->resume);
  add_rank_options(*command, options->ranks);
  add_sharding_options(*command, options->ranks);
  command->footer(
      "Losses do not depend on the mesh: the same seed gives the same weights and batches on any dp x cp x "
      "tp, sharded or not.");
  command->callback([options, command] {
    TrainOptions& train = options->train;
    train.resume = command->count("--resume") > 0 &&
                   (options->resume != "auto" || meshtorch::checkpoint::exists(train.checkpoint));
    run_train(*options);
  });
}

}  // namespace llama

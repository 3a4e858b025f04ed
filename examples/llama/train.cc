// The training loop.
#include "train.h"

#include <meshtorch/process_group.h>
#include <meshtorch/random.h>

#include <fstream>
#include <ostream>

#include "outputs.h"
#include "parallelize.h"
#include "records.h"
#include "run_report.h"
#include "trainer.h"

namespace llama {
namespace {

namespace mt = meshtorch;

Llama starting_model(const TrainOptions& options, const mt::DeviceMesh& mesh) {
  const torch::Dtype dtype = dtype_of(options.trainer.bfloat16 ? "float32" : options.dtype);
  if (!options.model.empty()) return load_model(options.model, mesh, dtype, {.sequence_parallel = true});
  Llama model(options.new_model, dtype);
  parallelize(model, mesh);
  if (!options.resume) initialize(*model);
  return model;
}

void check_tokens(const TokenWindows& data, const Config& config, const std::string& file) {
  TORCH_CHECK_VALUE(
      data.largest_token() < config.vocab_size, "meshtorch-llama: ", file, " has token ",
      data.largest_token(), ", and the model a vocabulary of ", config.vocab_size,
      "\n  option --data\n  do: use a file of the model's own tokens (name ending in .ids), or a "
      "model with a vocabulary of 256 or more for text");
}

// What rank 0 tells; the others keep the records only.
class Report {
 public:
  Report(const TrainOptions& options, std::int64_t done, std::ostream& out)
      : options_(options),
        speaks_(mt::get_rank() == 0),
        out_(out),
        log_(speaks_ ? options.log : "", done),
        progress_(out, {.total_steps = options.steps,
                        .is_terminal = options.is_terminal,
                        .every = options.print_every}) {}

  void start(const Llama& model, const mt::DeviceMesh& mesh, std::int64_t done) {
    if (!speaks_) return;
    std::int64_t parameters = 0;
    for (const torch::Tensor& p : model->parameters()) parameters += p.numel();
    out_ << "A Llama of " << short_number(static_cast<double>(parameters)) << " parameters on "
         << mesh.to_string() << "; a step is " << options_.trainer.batch_size << " x "
         << options_.sequence_length << " tokens";
    if (done > 0) out_ << "; " << done << " steps are done";
    out_ << std::endl;
  }
  void add(const StepRecord& record) {
    log_.add(record);
    if (speaks_) progress_.show(record);
  }
  void finish(const std::string& comm_table) {
    if (!speaks_) return;
    progress_.finish();
    if (options_.comm_table) out_ << "\nWhat rank 0 communicates in one step\n" << comm_table << std::endl;
    if (!options_.svg.empty()) write_curve();
    const bool no_step_ran = comm_table.empty();
    if (no_step_ran && !options_.trace.empty())
      out_ << "No step was left to do: no trace is written to " << options_.trace << std::endl;
  }
  const std::vector<StepRecord>& records() const { return log_.records(); }

 private:
  void write_curve() {
    std::ofstream file(options_.svg);
    file << loss_curve_svg(log_.records(), "Training loss");
    file.close();
    TORCH_CHECK_VALUE(!file.fail(), "meshtorch-llama: cannot write the loss curve ", options_.svg,
                      "\n  option --svg\n  do: name a file in a folder that exists");
  }

  const TrainOptions& options_;
  bool speaks_;
  std::ostream& out_;
  TrainingLog log_;
  Progress progress_;
};

bool is_due(const TrainOptions& options, std::int64_t done) {
  return !options.checkpoint.empty() && options.checkpoint_every > 0 && done % options.checkpoint_every == 0;
}

// `rescued` is where the state before that step is, empty if the run keeps none.
[[noreturn]] void stop_not_finite(const std::string& rescued, std::int64_t step, const StepOutcome& outcome) {
  const std::string rest =
      rescued.empty()
          ? "there is no checkpoint of the state before that step\n  do: start again with a lower "
            "--learning-rate, and with --checkpoint to keep it"
          : "the state before that step is in " + rescued + "\n  do: go on from there with --checkpoint " +
                rescued + " --resume and a lower --learning-rate";
  TORCH_CHECK(false, "meshtorch-llama: step ", step + 1, " has loss ", outcome.loss, " and gradient norm ",
              outcome.gradient_norm, ": the training cannot go on\n  ", rest);
}

// The error that ended the training matters more than one of the page's.
void write_of_failed(const RunReport& page, const Llama& model, const std::vector<StepRecord>& records,
                     std::ostream& out) {
  try {
    page.write(model, records);
  } catch (const std::exception& error) {
    out << "meshtorch-llama: the report of the failed run was not written: " << error.what() << std::endl;
  }
}

}  // namespace

Config small_config() {
  Config config;
  config.vocab_size = 256;
  config.hidden_size = 128;
  config.intermediate_size = 352;
  config.num_layers = 4;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 32;
  config.max_positions = 1024;
  return config;
}

Training train(const TrainOptions& options, const mt::DeviceMesh& mesh, std::ostream& out) {
  if (mt::get_rank() == 0) check_outputs(options);
  const TokenWindows data(read_tokens(options.data), options.sequence_length, options.seed);
  mt::manual_seed(options.seed);
  RunReport page(options, mesh);
  Llama model = starting_model(options, mesh);
  check_tokens(data, model->config, options.data);
  Trainer trainer(model, mesh, options.trainer);
  trainer.on_forward_done = [&] { page.forward_is_done(); };
  TrainingState state(model, trainer.optimizer());
  const std::int64_t done = options.resume ? state.load(options.checkpoint) : 0;
  const std::int64_t end =
      options.stop_after > 0 ? std::min(options.stop_after, options.steps) : options.steps;

  Report report(options, done, out);
  report.start(model, mesh, done);
  StepMeter meter(options.trace, options.trainer.batch_size * options.sequence_length, end - done);
  const Interruption interruption(!options.report.empty() && mt::get_rank() == 0);
  try {
    for (std::int64_t step = done; step < end; ++step) {
      page.begin_step(step - done, end - done);
      meter.begin(step - done);
      const StepOutcome outcome = trainer.step(step, data);
      if (!outcome.is_finite) {
        const std::string rescued = options.checkpoint.empty() ? "" : options.checkpoint + "-not-finite";
        if (!rescued.empty()) state.save(rescued, step);
        stop_not_finite(rescued, step, outcome);
      }
      StepRecord record{.step = step + 1,
                        .loss = outcome.loss,
                        .learning_rate = outcome.learning_rate,
                        .gradient_norm = outcome.gradient_norm};
      meter.end(record);
      report.add(record);
      page.end_step(model, trainer.optimizer());
      if (mt::get_rank() == 0 && Interruption::was_asked_for()) {
        page.write(model, report.records());
        Interruption::end_process();
      }
      if (is_due(options, step + 1) && step + 1 < end) state.save_in_background(options.checkpoint, step + 1);
    }
  } catch (...) {
    write_of_failed(page, model, report.records(), out);
    throw;
  }
  if (!options.checkpoint.empty()) state.save(options.checkpoint, end);
  report.finish(meter.comm_table());
  page.write(model, report.records());
  if (!options.export_to.empty()) export_model(model, options.export_to);
  return {model, report.records()};
}

}  // namespace llama

// The front door, `make demo`: a small Llama learns a book on 4 ranks (dp 2 x tp 2), writes some text, and is
// compared with the same training on one device.
#include <meshtorch/meshtorch.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <filesystem>
#include <iomanip>
#include <iostream>

#include "commands.h"
#include "generate.h"
#include "number_options.h"
#include "parallelize.h"
#include "train.h"

namespace {

namespace mt = meshtorch;

struct DemoOptions {
  std::int64_t steps = 350;
  std::int64_t compared_steps = 20;
  std::int64_t letters = 120;  // it learns from windows of 128 and has seen no places beyond them
  std::string out = "demo-output";
};

constexpr llama::RankOptions kFourRanks{.dp = 2, .tp = 2, .threads = true};
constexpr llama::RankOptions kOneRank{.dp = 1, .tp = 1, .threads = true};
constexpr const char* kPrompt = "Alice ";

void heading(const std::string& text) { std::cout << "\n== " << text << "\n" << std::endl; }

llama::TrainOptions training(const DemoOptions& demo) {
  llama::TrainOptions options;
  options.data = MESHTORCH_DEMO_TEXT;
  options.steps = demo.steps;
  options.trainer.learning_rate = {
      .peak = 4e-3, .final_fraction = 0.05, .warmup_steps = demo.steps / 20, .total_steps = demo.steps};
  return options;
}

// The layout follows from the plan alone: this model has no data yet.
void show_one_weight(const mt::DeviceMesh& mesh) {
  llama::Llama model(llama::small_config());
  llama::parallelize(model, mesh);
  if (mt::get_rank() != 0) return;
  std::cout << "model.layers.0.mlp.up_proj.weight: rows split over tp, a copy in each half of dp\n"
            << mt::visualize_sharding(model->model->layers[0]->mlp->up_proj->weight) << std::flush;
}

std::vector<llama::StepRecord> train_on_four(const DemoOptions& demo) {
  llama::TrainOptions options = training(demo);
  options.is_terminal = isatty(STDOUT_FILENO) == 1;
  options.svg = demo.out + "/loss.svg";
  options.report = demo.out + "/report.html";
  options.log = demo.out + "/log.jsonl";
  options.export_to = demo.out + "/model";
  std::vector<llama::StepRecord> records;
  llama::on_ranks(kFourRanks, [&](const mt::DeviceMesh& mesh) {
    const llama::Training done = llama::train(options, mesh, std::cout);
    if (mt::get_rank() == 0) records = done.records;
  });
  return records;
}

// The same weights, batches and steps on one rank.
void compare_with_one_device(const DemoOptions& demo, const std::vector<llama::StepRecord>& together) {
  llama::TrainOptions options = training(demo);
  options.stop_after = std::min(demo.compared_steps, demo.steps);
  std::vector<llama::StepRecord> alone;
  llama::on_ranks(kOneRank, [&](const mt::DeviceMesh& mesh) {
    std::ostringstream silent;
    alone = llama::train(options, mesh, silent).records;
  });
  double largest = 0;
  std::cout << "  step   one device      4 ranks   difference\n";
  for (std::size_t i = 0; i < alone.size(); ++i) {
    const double difference = std::abs(alone[i].loss - together[i].loss);
    largest = std::max(largest, difference / alone[i].loss);
    if (i % 5 != 4 && i != 0) continue;
    std::cout << std::setw(6) << alone[i].step << std::fixed << std::setprecision(7) << std::setw(13)
              << alone[i].loss << std::setw(13) << together[i].loss << std::defaultfloat
              << std::setprecision(2) << std::setw(13) << difference << "\n";
  }
  TORCH_CHECK(largest < 1e-4, "the losses differ by ", largest);
  std::cout << "The losses of all " << alone.size() << " steps agree: to 1 part in "
            << static_cast<std::int64_t>(1 / std::max(largest, 1e-9)) << ", which is float32's rounding.\n";
}

void write_text(const DemoOptions& demo) {
  llama::on_ranks(kFourRanks, [&](const mt::DeviceMesh& mesh) {
    const llama::Llama model = llama::load_model(demo.out + "/model", mesh, torch::kFloat);
    llama::GenerateOptions options;
    options.max_new_tokens = demo.letters;
    options.sampling.temperature = 0.7;
    options.sampling.seed = 1;
    const bool speaks = mt::get_rank() == 0;
    if (speaks) std::cout << kPrompt;
    options.on_token = [speaks](std::size_t, std::int64_t id) {
      if (speaks) std::cout << llama::text_of({id}) << std::flush;
    };
    llama::generate(model, mesh, {llama::bytes_of(kPrompt)}, options);
    if (speaks) std::cout << std::endl;
  });
}

// As it can be typed here.
std::string beside_this_program(const char* name) {
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
  return std::filesystem::proximate(program.parent_path() / name).string();
}

void run(const DemoOptions& demo) {
  std::filesystem::create_directories(demo.out);
  std::cout << "meshtorch demo: a small Llama reads \"Alice's Adventures in Wonderland\" on 4 ranks, threads "
               "of this\n"
               "process: 2 rows share the batch (dp), 2 columns share every layer (tp)."
            << std::endl;
  heading("How one weight is split");
  llama::on_ranks(kFourRanks, show_one_weight);
  heading("Training on 4 ranks");
  const std::vector<llama::StepRecord> records = train_on_four(demo);
  std::cout << "The loss fell from " << records.front().loss << " to " << records.back().loss
            << " (nats a byte).\n";
  heading("The same training on one device");
  compare_with_one_device(demo, records);
  heading("What it writes, on 4 ranks, from \"" + std::string(kPrompt) + "\"");
  write_text(demo);
  std::cout << "\nIn " << demo.out
            << ": a page for your browser (report.html), the loss curve (loss.svg), every step's numbers\n"
            << "(log.jsonl), the model (model/, in Hugging Face's format). Next: "
            << beside_this_program("meshtorch-llama") << " generate --model " << demo.out
            << "/model --prompt \"The Queen \"\n";
}

}  // namespace

int main(int argc, char** argv) {
  DemoOptions demo;
  CLI::App app("Trains a small Llama on 4 ranks and shows it.", "demo");
  app.add_option("--steps", demo.steps, "training steps")
      ->capture_default_str()
      ->check(llama::number_from<std::int64_t>(1));
  app.add_option("--compared-steps", demo.compared_steps, "steps to repeat on one device")
      ->capture_default_str();
  app.add_option("--letters", demo.letters, "letters to write at the end")->capture_default_str();
  app.add_option("--out", demo.out, "directory for the results")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    run(demo);
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << "\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << "demo: " << error.what() << "\n";
    return 1;
  }
}

// meshtorch-llama generate and logits: prompts from the command line; new tokens to standard output as they
// come, or logits to a file.
#include <meshtorch/process_group.h>
#include <meshtorch/safetensors.h>
#include <torch/torch.h>
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>

#include "commands.h"
#include "generate.h"
#include "number_options.h"
#include "parallelize.h"

namespace llama {
namespace {

struct GenerateCommandOptions {
  std::string model;
  std::vector<std::string> ids;
  std::vector<std::string> texts;
  std::string dtype = "float32";
  bool json = false;
  RankOptions ranks = {};
  GenerateOptions generate = {};
};

std::vector<Ids> prompts_of(const GenerateCommandOptions& options) {
  std::vector<Ids> prompts;
  for (const std::string& ids : options.ids) prompts.push_back(parse_ids(ids));
  for (const std::string& text : options.texts) prompts.push_back(bytes_of(text));
  return prompts;
}

std::string joined(const Ids& ids, const char* between) {
  std::string text;
  for (const std::int64_t id : ids) text += (text.empty() ? "" : between) + std::to_string(id);
  return text;
}

// One prompt: {"ids": [1, 2]}; several: {"ids": [[1, 2], [3]]}.
std::string as_json(const std::vector<Ids>& rows) {
  std::string text;
  for (const Ids& row : rows) text += (text.empty() ? "[" : ", [") + joined(row, ", ") + "]";
  return "{\"ids\": " + (rows.size() == 1 ? text : "[" + text + "]") + "}";
}

// A single prompt's tokens appear as they are made; those of several, row by row, at the end.
class Output {
 public:
  // What is told of ids that are no bytes.
  static void report_other_ids(const std::vector<Ids>& rows) {
    std::size_t others = 0;
    for (const Ids& row : rows)
      others += static_cast<std::size_t>(std::ranges::count_if(row, std::not_fn(is_byte)));
    if (others == 0) return;
    std::cerr
        << "meshtorch-llama: " << others
        << " of the tokens are no bytes, and are printed as <id>\n  where: --prompt\n  do: give --ids if "
           "the model is not one of bytes\n";
  }

  Output(const GenerateCommandOptions& options, std::size_t rows)
      : json_(options.json), as_text_(!options.texts.empty()), streams_(rows == 1 && !options.json) {}

  void add(std::int64_t id) const {
    if (streams_) std::cout << (as_text_ ? text_of({id}) : std::to_string(id) + " ") << std::flush;
  }
  void finish(const std::vector<Ids>& rows) const {
    if (json_) {
      std::cout << as_json(rows);
    } else if (!streams_) {
      for (std::size_t i = 0; i < rows.size(); ++i) {
        std::cout << (i > 0 ? "\n" : "") << (as_text_ ? text_of(rows[i]) : joined(rows[i], " "));
      }
    }
    std::cout << std::endl;
    if (as_text_ && !json_) report_other_ids(rows);
  }

 private:
  bool json_, as_text_, streams_;
};

void report_speed(const std::vector<Ids>& rows, double seconds) {
  std::size_t count = 0;
  for (const Ids& row : rows) count += row.size();
  std::cerr << count << " tokens in " << seconds
            << " s, prompts included: " << static_cast<double>(count) / seconds << " tokens/s\n";
}

// One token at a time is one row times each weight, which is read fastest along the longer side of the shard.
void store_for_rows(const Llama& model) {
  const torch::NoGradGuard no_grad;
  for (const auto& module : model->modules()) {
    auto* linear = module->as<torch::nn::LinearImpl>();
    if (linear == nullptr) continue;
    const torch::Tensor shard = meshtorch::DTensor(linear->weight).to_local();
    if (shard.size(0) >= shard.size(1)) linear->weight.set_data(linear->weight.t().contiguous().t());
  }
}

void run_generate(const GenerateCommandOptions& options) {
  const std::vector<Ids> prompts = prompts_of(options);
  if (!options.texts.empty()) check_model_of_bytes(options.model);
  on_ranks(options.ranks, [&](const meshtorch::DeviceMesh& mesh) {
    const bool speaks = meshtorch::get_rank() == 0;
    const Llama model = load_model(options.model, mesh, dtype_of(options.dtype));
    store_for_rows(model);
    const Output output(options, prompts.size());
    GenerateOptions generating = options.generate;
    if (speaks) generating.on_token = [&](std::size_t, std::int64_t id) { output.add(id); };
    const auto begin = std::chrono::steady_clock::now();
    const std::vector<Ids> rows = generate(model, mesh, prompts, generating);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    if (!speaks) return;
    output.finish(rows);
    report_speed(rows, taken.count());
  });
}

}  // namespace

void add_generate(CLI::App& app) {
  auto options = std::make_shared<GenerateCommandOptions>();
  CLI::App* command = app.add_subcommand("generate", "Continue prompts.");
  command->add_option("--model", options->model, "directory of the model")->required();
  command->add_option("--ids", options->ids, "token ids of a prompt, as 1,5,7; may be given several times")
      ->allow_extra_args(false);
  command
      ->add_option("--prompt", options->texts,
                   "text of a prompt, for a model of bytes; may be given several times")
      ->allow_extra_args(false);
  command->add_option("--max-new-tokens", options->generate.max_new_tokens, "tokens to make for each prompt")
      ->capture_default_str()
      ->check(number_from<std::int64_t>(0));
  SamplingOptions& sampling = options->generate.sampling;
  command->add_flag("--greedy", sampling.greedy, "take the most probable token");
  command
      ->add_option("--temperature", sampling.temperature,
                   "below 1 sharpens, above 1 flattens the probabilities")
      ->capture_default_str();
  command->add_option("--top-k", sampling.top_k, "draw from the k most probable tokens; 0: from all")
      ->capture_default_str();
  command->add_option("--top-p", sampling.top_p, "draw from the most probable tokens that reach p together")
      ->capture_default_str();
  command->add_option("--seed", sampling.seed, "equal seeds give equal text, on any number of ranks")
      ->capture_default_str();
  command->add_option("--dtype", options->dtype, "type to compute in: float32, float64, bfloat16 or float16")
      ->capture_default_str();
  command->add_flag("--json", options->json, "print {\"ids\": [...]}, the new tokens only, and nothing else");
  add_rank_options(*command, options->ranks);
  command->footer(
      "An end token of config.json or generation_config.json ends a row and is its last token.\nTokens go to "
      "standard output as they are made, the speed to standard error.");
  command->callback([options] { run_generate(*options); });
}

namespace {

struct LogitsOptions {
  std::string model;
  std::vector<std::string> ids;
  std::string out;
  std::string dtype = "float32";
  RankOptions ranks = {};
};

void run_logits(const LogitsOptions& options) {
  std::vector<Ids> prompts;
  for (const std::string& ids : options.ids) prompts.push_back(parse_ids(ids));
  on_ranks(options.ranks, [&](const meshtorch::DeviceMesh& mesh) {
    Llama model = load_model(options.model, mesh, dtype_of(options.dtype));
    check_prompts(prompts, model->config.vocab_size);
    const torch::NoGradGuard no_grad;
    const PromptBatch batch = make_batch(prompts);
    const torch::Tensor logits_BSV = model(distribute_batch(batch.ids_BS, mesh), nullptr, batch.pads_B);
    const torch::Tensor whole_BSV =
        meshtorch::DTensor(logits_BSV).full_tensor().to(torch::kFloat).contiguous();
    if (meshtorch::get_rank() == 0) meshtorch::safetensors::write(options.out, {{"logits", whole_BSV}});
  });
}

}  // namespace

void add_logits(CLI::App& app) {
  auto options = std::make_shared<LogitsOptions>();
  CLI::App* command = app.add_subcommand("logits", "Write the logits of prompts to a file.");
  command->add_option("--model", options->model, "directory of the model")->required();
  command->add_option("--ids", options->ids, "token ids of a prompt, as 1,5,7; may be given several times")
      ->required()
      ->allow_extra_args(false);
  command
      ->add_option("--out", options->out,
                   "safetensors file to write: `logits` [prompts, tokens, vocabulary], float32")
      ->required();
  command->add_option("--dtype", options->dtype, "type to compute in: float32, float64, bfloat16 or float16")
      ->capture_default_str();
  add_rank_options(*command, options->ranks);
  command->footer("Shorter prompts of a batch are padded at the left; the logits of padding mean nothing.");
  command->callback([options] { run_logits(*options); });
}

}  // namespace llama

// meshtorch-llama logits: the model's logits for prompts, into a safetensors file.
#include <meshtorch/process_group.h>
#include <meshtorch/safetensors.h>
#include <torch/torch.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "commands.h"
#include "loading.h"
#include "prompts.h"
#include "ranks.h"

namespace llama {
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

// Inspection on the fake backend, and meshtorch-llama inspect, which prints it in seconds.
#include "inspect.h"

#include <meshtorch/decision_log.h>
#include <meshtorch/gradients.h>
#include <meshtorch/implicit_replication.h>
#include <meshtorch/loss_parallel.h>
#include <meshtorch/memory.h>
#include <meshtorch/process_group.h>
#include <meshtorch/report.h>
#include <torch/torch.h>
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <filesystem>
#include <iomanip>
#include <iostream>
#include <regex>

#include "commands.h"
#include "number_options.h"
#include "parallelize.h"

namespace llama {
namespace {

namespace mt = meshtorch;

std::string with_any_layer(const std::string& name) {
  static const std::regex kLayer("\\.layers\\.[0-9]+\\.");
  return std::regex_replace(name, kLayer, ".layers.*.");
}

}  // namespace

std::vector<ParameterLine> parameters_of(const LlamaImpl& model) {
  std::vector<ParameterLine> lines;
  for (const auto& item : model.named_parameters()) {
    const mt::DTensor parameter(item.value().detach());
    const torch::Tensor local = parameter.to_local();
    const auto bytes = local.numel() * static_cast<std::int64_t>(local.element_size());
    const std::string name = with_any_layer(item.key());
    const auto same =
        std::find_if(lines.begin(), lines.end(), [&](const auto& line) { return line.name == name; });
    if (same == lines.end()) {
      lines.push_back({name, 1, parameter.sizes().vec(), local.sizes().vec(), parameter.placements(),
                       parameter.numel(), bytes});
    } else {
      same->count += 1;
      same->elements += parameter.numel();
      same->local_bytes += bytes;
    }
  }
  return lines;
}

std::vector<StepPhase> collectives_of_step(Llama model, const mt::DeviceMesh& mesh,
                                           const torch::Tensor& ids_BS,
                                           const std::function<void()>& on_forward_done) {
  const TrainingBatch batch(ids_BS, ids_BS, mesh);
  const mt::loss_parallel split_by_vocabulary;
  mt::CommDebugMode comm;
  std::vector<StepPhase> phases;
  const auto end_phase = [&](const char* name) {
    phases.push_back({name, comm.get_comm_counts()});
    comm.restart();
  };
  const torch::Tensor logits_BSV = model(batch.ids_BS, nullptr, torch::Tensor(), batch.positions_BS);
  end_phase("forward");
  const torch::Tensor loss =
      torch::nn::functional::cross_entropy(logits_BSV.flatten(0, 1), batch.targets_BS.flatten(0, 1));
  end_phase("loss");
  if (on_forward_done) on_forward_done();
  loss.backward();
  end_phase("backward");
  mt::reduce_gradients(model->parameters());
  end_phase("gradients");
  return phases;
}

namespace {

struct InspectOptions {
  std::string model;
  std::int64_t world_size = 1;
  std::int64_t tp = 1;
  std::int64_t cp = 1;
  std::int64_t dp_shard = 0;
  std::int64_t rank = 0;
  std::int64_t batch = 1;
  std::int64_t sequence = 0;
  std::string dtype;
  std::string html;
  bool no_sequence_parallel = false;
};

void check(const InspectOptions& options) {
  TORCH_CHECK_VALUE(options.world_size % options.tp == 0, "meshtorch-llama: ", options.world_size,
                    " ranks cannot be cut into rows of ", options.tp,
                    "\n  where: --world-size and --tp\n  do: give a --tp that divides --world-size");
  const std::int64_t rows = options.world_size / options.tp;
  TORCH_CHECK_VALUE(rows % options.cp == 0, "meshtorch-llama: ", rows,
                    " rows of ranks cannot be cut into groups of ", options.cp,
                    "\n  where: --cp\n  do: give a number that divides --world-size / --tp");
  const std::int64_t dp = rows / options.cp;
  TORCH_CHECK_VALUE(options.dp_shard == 0 || dp % options.dp_shard == 0, "meshtorch-llama: ", dp,
                    " ranks of data parallelism cannot be cut into groups of ", options.dp_shard,
                    "\n  where: --dp-shard\n  do: give a number that divides --world-size / --tp / --cp");
  TORCH_CHECK_VALUE(options.rank < options.world_size, "meshtorch-llama: there is no rank ", options.rank,
                    " among ", options.world_size, "\n  where: --rank\n  do: give a rank from 0 to ",
                    options.world_size - 1);
}

// The largest tensors of a step can be counted.
void check_step(const InspectOptions& options, const Config& config, std::int64_t dp, std::int64_t sequence) {
  std::int64_t bytes = 8;
  bool fits = true;
  for (const std::int64_t size :
       {dp, options.batch, sequence, std::max(config.vocab_size, config.intermediate_size)})
    fits = fits && !__builtin_mul_overflow(bytes, size, &bytes);
  TORCH_CHECK_VALUE(fits, "meshtorch-llama: a step of ", dp, " x ", options.batch, " x ", sequence,
                    " tokens is beyond all memory\n  where: --batch, --sequence and --world-size\n  do: give "
                    "the sizes of one step");
}

std::string in_words(std::int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits{"B", "kB", "MB", "GB", "TB"};
  auto amount = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; amount >= 1000 && unit + 1 < kUnits.size(); ++unit) amount /= 1000;
  std::ostringstream text;
  text << std::fixed << std::setprecision(unit == 0 ? 0 : 2) << amount << " " << kUnits[unit];
  return text.str();
}

std::string shape_text(const std::vector<std::int64_t>& shape) { return "(" + c10::Join(", ", shape) + ")"; }

void print_parameters(const std::vector<ParameterLine>& lines) {
  std::size_t longest = 10;
  for (const ParameterLine& line : lines) longest = std::max(longest, mt::to_string(line.placements).size());
  const int width = static_cast<int>(longest) + 2;
  std::cout << std::left << std::setw(58) << "parameter" << std::setw(18) << "shape" << std::setw(width)
            << "placements" << std::setw(18) << "on this rank"
            << "bytes on this rank\n";
  std::int64_t elements = 0, bytes = 0;
  for (const ParameterLine& line : lines) {
    const std::string name = line.name + (line.count > 1 ? " x " + std::to_string(line.count) : "");
    std::cout << std::setw(58) << name << std::setw(18) << shape_text(line.shape) << std::setw(width)
              << mt::to_string(line.placements) << std::setw(18) << shape_text(line.local_shape)
              << line.local_bytes << "\n";
    elements += line.elements;
    bytes += line.local_bytes;
  }
  std::cout << elements << " parameters; on this rank " << bytes << " bytes (" << in_words(bytes) << ")\n";
}

void print_collectives(const std::vector<StepPhase>& phases) {
  std::cout << std::left << std::setw(12) << "phase" << std::setw(28) << "collective" << std::right
            << std::setw(8) << "count" << std::setw(18) << "bytes sent\n";
  std::int64_t count = 0, bytes = 0;
  for (const StepPhase& phase : phases) {
    for (const auto& [collective, statistics] : phase.counts.statistics()) {
      std::cout << std::left << std::setw(12) << phase.name << std::setw(28) << mt::to_string(collective)
                << std::right << std::setw(8) << statistics.count << std::setw(17) << statistics.bytes_sent
                << "\n";
      count += statistics.count;
      bytes += statistics.bytes_sent;
    }
  }
  std::cout << std::left << std::setw(40) << "all" << std::right << std::setw(8) << count << std::setw(17)
            << bytes << "\n";
}

// The name of the model's directory.
std::string model_name(const std::string& model) {
  std::filesystem::path path = std::filesystem::absolute(model);
  if (path.filename() == "config.json" || !path.has_filename()) path = path.parent_path();
  return path.filename().string();
}

// What one step on `ids_BS` costs, printed and, if wanted, as a page.
void inspect_step(const InspectOptions& options, Llama model, const mt::DeviceMesh& mesh,
                  const torch::Tensor& ids_BS) {
  if (options.html.empty()) {
    print_collectives(collectives_of_step(model, mesh, ids_BS));
    return;
  }
  mt::CommDebugMode comm;
  mt::DecisionLog decisions;
  std::int64_t activations = 0;
  std::vector<StepPhase> phases;
  {
    const mt::KeptMemory kept;
    phases = collectives_of_step(model, mesh, ids_BS, [&] { activations = kept.bytes(); });
  }
  comm.stop();
  decisions.stop();
  print_collectives(phases);
  const Config& config = model->config;
  const mt::ParallelizePlan plan =
      plan_of(config, options.tp, {.sequence_parallel = !options.no_sequence_parallel});
  mt::report::Contents contents;
  contents.title = model_name(options.model) + " on " + std::to_string(options.world_size) + " ranks";
  contents.facts = {
      {"layers", std::to_string(config.num_layers)},
      {"width", std::to_string(config.hidden_size)},
      {"heads", std::to_string(config.num_heads) + " (" + std::to_string(config.num_kv_heads) +
                    " of keys and values)"},
      {"vocabulary", std::to_string(config.vocab_size)},
      {"step", std::to_string(ids_BS.size(0)) + " x " + std::to_string(ids_BS.size(1)) + " tokens"}};
  contents.mesh = mesh;
  contents.module = model.get();
  contents.plan = &plan;
  contents.comm = &comm;
  contents.comm_of = "One training step, on shapes alone";
  contents.decisions = &decisions;
  contents.memory = mt::estimate_memory(*model, {.activations = activations});
  contents.memory_note =
      "Estimated: gradients and the two numbers of AdamW in the type of the parameters and as they lie; "
      "activations are the tensors that the forward pass of rank " +
      std::to_string(options.rank) + " keeps for backward, nothing recomputed.";
  for (const StepPhase& phase : phases) contents.phases.push_back({phase.name, phase.counts});
  mt::report::write(options.html, contents);
  std::cout << "\nThe page is in " << options.html << "\n";
}

void run_inspect(const InspectOptions& options) {
  check(options);
  const Config config = Config::from_path(options.model);
  const std::int64_t dp = options.world_size / options.tp / options.cp;
  const MeshShape shape{.dp = dp,
                        .cp = options.cp,
                        .tp = options.tp,
                        .dp_shard = options.dp_shard,
                        .dp_replicate = options.dp_shard > 0 ? dp / options.dp_shard : 1};
  const std::int64_t sequence =
      options.sequence > 0 ? options.sequence : std::min<std::int64_t>(config.max_positions, 4096);
  check_step(options, config, dp, sequence);
  mt::init_process_group({.backend = "fake",
                          .init_method = "tcp://none:0",
                          .rank = static_cast<int>(options.rank),
                          .world_size = static_cast<int>(options.world_size)});
  {
    const mt::implicit_replication plain_is_replicated;
    const mt::DeviceMesh mesh = make_mesh(shape);
    Llama model(config, dtype_of(options.dtype.empty() ? config.dtype : options.dtype));
    parallelize(model, mesh, {.sequence_parallel = !options.no_sequence_parallel});
    std::cout << config.num_layers << " layers of width " << config.hidden_size << ", " << config.num_heads
              << " heads (" << config.num_kv_heads << " of keys and values), vocabulary " << config.vocab_size
              << "\nrank " << options.rank << " of " << options.world_size << ": " << shape.to_string()
              << "\n\n";
    print_parameters(parameters_of(*model));
    std::cout << "\nOne training step of " << dp * options.batch << " x " << sequence << " tokens, "
              << options.batch << " x " << sequence << " on each "
              << (options.cp > 1 ? "group of cp x tp ranks\n" : "row of tp ranks\n");
    const torch::Tensor ids_BS =
        torch::empty({dp * options.batch, sequence}, torch::TensorOptions(torch::kLong).device(torch::kMeta));
    inspect_step(options, model, mesh, ids_BS);
  }
  mt::destroy_process_group();
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command = app.add_subcommand(
      "inspect", "Print parameters, memory and collectives of a model on a mesh of any size.");
  command
      ->add_option("--model", options->model, "directory of the model, or a config.json: no weights are read")
      ->required();
  command->add_option("--world-size", options->world_size, "number of ranks")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--tp", options->tp, "ranks that share each layer; the rest is data parallel")
      ->capture_default_str()
      ->check(number_from<std::int64_t>(1));
  command->add_option("--cp", options->cp, "ranks that share each sequence, inside attention too")
      ->capture_default_str()
      ->check(number_from<std::int64_t>(1));
  command
      ->add_option(
          "--dp-shard", options->dp_shard,
          "data-parallel ranks over which parameters are split, gathered layer by layer (default: none)")
      ->check(number_from<std::int64_t>(1));
  command->add_option("--rank", options->rank, "whose shards and bytes to print")
      ->capture_default_str()
      ->check(number_from<std::int64_t>(0));
  command->add_option("--batch", options->batch, "sequences of a step for each row of tp ranks")
      ->capture_default_str()
      ->check(number_from<std::int64_t>(1));
  command
      ->add_option("--sequence", options->sequence,
                   "tokens of a sequence (default: the model's length, at most 4096)")
      ->check(number_from<std::int64_t>(1));
  command->add_option("--dtype", options->dtype, "type of the weights (default: that of config.json)");
  command->add_flag("--no-sequence-parallel", options->no_sequence_parallel,
                    "keep activations whole between layers");
  command->add_option("--html", options->html, "write all of it here, as a page for a browser");
  command->footer(
      "Nothing is allocated and nothing is sent: one rank of the fake backend runs the step on shapes "
      "alone.\n"
      "Bytes sent are those of rings. Example: meshtorch-llama inspect --model DIR --world-size 1024 --tp 8");
  command->callback([options] { run_inspect(*options); });
}

}  // namespace llama

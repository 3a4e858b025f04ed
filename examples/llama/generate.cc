// Prompts, the choice of a token, and the loop of generation: the prompts at once, then one token a row at a
// time.
#include "generate.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <meshtorch/implicit_replication.h>
#include <torch/torch.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <sstream>

namespace llama {

Ids parse_ids(const std::string& text) {
  Ids ids;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    std::int64_t id = 0;
    const char* end = word.data() + word.size();
    const auto [last, error] = std::from_chars(word.data(), end, id);
    TORCH_CHECK_VALUE(error == std::errc() && last == end, "meshtorch-llama: \"", word,
                      "\" is no token id\n  in: ", text,
                      "\n  do: give whole numbers with commas between, as 1,5,7");
    ids.push_back(id);
  }
  return ids;
}

Ids bytes_of(const std::string& text) {
  Ids ids;
  for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
  return ids;
}

std::string text_of(const Ids& ids) {
  std::string text;
  for (const std::int64_t id : ids) {
    if (is_byte(id)) {
      text += static_cast<char>(id);
    } else {
      text += "<" + std::to_string(id) + ">";
    }
  }
  return text;
}

void check_model_of_bytes(const std::filesystem::path& model) {
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json"}) {
    TORCH_CHECK_VALUE(!std::filesystem::exists(model / name), "meshtorch-llama: the model has a tokenizer, ",
                      name, ", and --prompt is for models of bytes\n  in: ", model.string(),
                      "\n  do: give the ids that the tokenizer makes of the text, as --ids 1,5,7");
  }
}

void check_prompts(const std::vector<Ids>& prompts, std::int64_t vocab_size) {
  TORCH_CHECK_VALUE(!prompts.empty(),
                    "meshtorch-llama: there is no prompt\n  where: --ids or --prompt\n  do: give one");
  for (std::size_t row = 0; row < prompts.size(); ++row) {
    TORCH_CHECK_VALUE(!prompts[row].empty(),
                      "meshtorch-llama: a prompt needs at least one token\n  where: prompt ", row,
                      "\n  do: give one, as --ids 1");
    for (std::size_t i = 0; i < prompts[row].size(); ++i) {
      const std::int64_t id = prompts[row][i];
      TORCH_CHECK_VALUE(id >= 0 && id < vocab_size, "meshtorch-llama: token id ", id,
                        " is out of range: the vocabulary has ", vocab_size, " tokens\n  where: prompt ", row,
                        ", token ", i, "\n  do: give ids from 0 to ", vocab_size - 1);
    }
  }
}

PromptBatch make_batch(const std::vector<Ids>& prompts) {
  std::size_t longest = 0;
  for (const Ids& prompt : prompts) longest = std::max(longest, prompt.size());
  Ids padded, pads;
  for (const Ids& prompt : prompts) {
    pads.push_back(static_cast<std::int64_t>(longest - prompt.size()));
    padded.insert(padded.end(), longest - prompt.size(), 0);
    padded.insert(padded.end(), prompt.begin(), prompt.end());
  }
  PromptBatch batch;
  batch.ids_BS = at::tensor(padded, at::kLong).view({static_cast<std::int64_t>(prompts.size()), -1});
  if (std::any_of(pads.begin(), pads.end(), [](std::int64_t pad) { return pad > 0; })) {
    batch.pads_B = at::tensor(pads, at::kLong);
  }
  return batch;
}

namespace {

std::size_t kept_by_top_k(const SamplingOptions& options, std::size_t count) {
  return options.top_k > 0 ? std::min(count, static_cast<std::size_t>(options.top_k)) : count;
}

// The candidates' ids; sorted from the most probable down, ties by id, where a limit needs it.
std::vector<std::int64_t> candidates(std::span<const float> logits_V, const SamplingOptions& options) {
  std::vector<std::int64_t> ids(logits_V.size());
  std::iota(ids.begin(), ids.end(), 0);
  if (options.top_k <= 0 && options.top_p >= 1) return ids;
  const std::size_t kept = kept_by_top_k(options, ids.size());
  const auto is_before = [&](std::int64_t a, std::int64_t b) {
    const float logit_a = logits_V[static_cast<std::size_t>(a)],
                logit_b = logits_V[static_cast<std::size_t>(b)];
    return logit_a != logit_b ? logit_a > logit_b : a < b;
  };
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(kept), ids.end(), is_before);
  ids.resize(kept);
  return ids;
}

// How many of the sorted weights, whose sum is `total`, it takes to reach the share p.
std::size_t kept_by_top_p(const std::vector<double>& weights, double total, double p) {
  double sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    sum += weights[i];
    if (sum >= p * total) return i + 1;
  }
  return weights.size();
}

}  // namespace

void check(const SamplingOptions& options) {
  TORCH_CHECK_VALUE(std::isfinite(options.temperature) && options.temperature > 0,
                    "meshtorch-llama: a temperature has to be positive, it is ", options.temperature,
                    "\n  where: --temperature\n  do: use --greedy for the most probable token");
  TORCH_CHECK_VALUE(options.top_k >= 0, "meshtorch-llama: top-k cannot be ", options.top_k,
                    "\n  where: --top-k\n  do: give a number of tokens, or 0 for all");
  TORCH_CHECK_VALUE(options.top_p > 0 && options.top_p <= 1, "meshtorch-llama: top-p cannot be ",
                    options.top_p, "\n  where: --top-p\n  do: give a probability above 0, at most 1");
}

Sampler::Sampler(const SamplingOptions& options, std::uint64_t row) : options_(options) {
  std::seed_seq seeds{options.seed, options.seed >> 32, row};
  random_.seed(seeds);
}

std::int64_t Sampler::pick(std::span<const float> logits_V) {
  const auto largest = std::max_element(logits_V.begin(), logits_V.end());
  if (options_.greedy) return largest - logits_V.begin();
  const std::vector<std::int64_t> ids = candidates(logits_V, options_);
  std::vector<double> weights;
  weights.reserve(ids.size());
  for (const std::int64_t id : ids) {
    const double below =
        static_cast<double>(logits_V[static_cast<std::size_t>(id)]) - static_cast<double>(*largest);
    weights.push_back(std::exp(below / options_.temperature));
  }
  double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (options_.top_p < 1) {
    weights.resize(kept_by_top_p(weights, total, options_.top_p));
    total = std::accumulate(weights.begin(), weights.end(), 0.0);
  }
  // 53 random bits, by hand: the standard leaves its own distributions to the library.
  double left = static_cast<double>(random_() >> 11) * 0x1p-53 * total;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (left < 0) return ids[i];
  }
  return ids[weights.size() - 1];
}

namespace {

namespace mt = meshtorch;

// The rows that are being written.
class Rows {
 public:
  Rows(std::size_t count, const Ids& end_ids, const GenerateOptions& options)
      : options_(options), end_ids_(end_ids), ids_(count), is_done_(count) {
    for (std::size_t row = 0; row < count; ++row) samplers_.emplace_back(options.sampling, row);
  }

  bool all_done() const {
    return std::all_of(is_done_.begin(), is_done_.end(), [](bool done) { return done; });
  }
  std::vector<Ids> ids() && { return std::move(ids_); }

  // Chooses the next token of every row that goes on; those that ended repeat their last one, which nobody
  // sees.
  torch::Tensor pick(const torch::Tensor& logits_BV) {
    const auto vocabulary = static_cast<std::size_t>(logits_BV.size(1));
    Ids next;
    for (std::size_t row = 0; row < ids_.size(); ++row) {
      if (!is_done_[row])
        add(row, samplers_[row].pick({logits_BV.const_data_ptr<float>() + row * vocabulary, vocabulary}));
      next.push_back(ids_[row].back());
    }
    return torch::tensor(next, torch::kLong).unsqueeze(1);
  }

 private:
  void add(std::size_t row, std::int64_t id) {
    ids_[row].push_back(id);
    const bool is_end = std::find(end_ids_.begin(), end_ids_.end(), id) != end_ids_.end();
    is_done_[row] = is_end || static_cast<std::int64_t>(ids_[row].size()) >= options_.max_new_tokens;
    if (options_.on_token) options_.on_token(row, id);
  }

  const GenerateOptions& options_;
  const Ids& end_ids_;
  std::vector<Ids> ids_;
  std::vector<bool> is_done_;
  std::vector<Sampler> samplers_;
};

// After the prompts each rank of cp has a part of the keys and values; new tokens look at all of them.
void gather_over_cp(KvCache& cache, const mt::DeviceMesh& mesh) {
  if (!has_axis(mesh, "cp")) return;
  const auto cp = static_cast<std::size_t>(mesh.axis("cp"));
  for (KeysValues& layer : cache.layers) {
    for (torch::Tensor* part : {&layer.keys_BKTC, &layer.values_BKTC}) {
      mt::Placements placements = mt::placements(*part);
      placements[cp] = mt::Replicate();
      *part = mt::redistribute(*part, placements);
    }
  }
}

}  // namespace

std::vector<Ids> generate(Llama model, const mt::DeviceMesh& mesh, const std::vector<Ids>& prompts,
                          const GenerateOptions& options) {
  check(options.sampling);
  check_prompts(prompts, model->config.vocab_size);
  Rows rows(prompts.size(), model->config.eos_token_ids, options);
  if (options.max_new_tokens <= 0) return std::move(rows).ids();
  const torch::NoGradGuard no_grad;
  const mt::implicit_replication plain_is_replicated;
  const PromptBatch batch = make_batch(prompts);
  KvCache cache;
  torch::Tensor ids_BS = batch.ids_BS;
  while (true) {
    const torch::Tensor x_BSD = model->model(distribute_batch(ids_BS, mesh), &cache, batch.pads_B);
    const torch::Tensor logits_BV = model->logits(x_BSD.select(1, x_BSD.size(1) - 1));
    if (ids_BS.size(1) > 1) gather_over_cp(cache, mesh);
    ids_BS = rows.pick(mt::DTensor(logits_BV).full_tensor().to(torch::kFloat).contiguous());
    if (rows.all_done()) return std::move(rows).ids();
  }
}

}  // namespace llama

// The loop of generation: the prompts at once, then one token a row at a time.
#include "generate.h"

#include <meshtorch/implicit_replication.h>
#include <torch/torch.h>

#include <algorithm>

namespace llama {
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
    ids_BS = rows.pick(mt::DTensor(logits_BV).full_tensor().to(torch::kFloat).contiguous());
    if (rows.all_done()) return std::move(rows).ids();
  }
}

}  // namespace llama

// Ranks that exchange texts: by a collective, or through the store of their world.
#include "checkpoint/gather.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <exception>

#include "backends/backend_traits.h"
#include "liveness/watched_store.h"
#include "runtime/error_text.h"
#include "runtime/host_tensor.h"
#include "world/rank_context.h"

namespace meshtorch::checkpoint::internal {
namespace {

at::Tensor gather_rows(const at::Tensor& row, const World& world, c10d::ProcessGroup& group) {
  const auto device = traits_of(world.backend).device;
  at::Tensor input = row.to(device);
  at::Tensor output = at::empty({world.size, row.size(1)}, input.options());
  // The backend is called without the dispatcher: nobody counts what the user did not ask for.
  group.getBackend(device)->_allgather_base(output, input, c10d::AllgatherOptions())->wait();
  return output.cpu();
}

std::vector<std::string> gather_texts(const std::string& mine, RankContext& context) {
  c10d::ProcessGroup& group = *context.default_group()->process_group;
  const auto length = static_cast<std::int64_t>(mine.size());
  const at::Tensor lengths =
      gather_rows(at::full({1, 1}, length, on_host(at::kLong)), context.world(), group).contiguous();
  const std::int64_t longest = lengths.max().item<std::int64_t>();
  at::Tensor row = at::zeros({1, std::max<std::int64_t>(longest, 1)}, on_host(at::kByte));
  std::copy(mine.begin(), mine.end(), row.data_ptr<std::uint8_t>());
  const at::Tensor rows = gather_rows(row, context.world(), group).contiguous();
  std::vector<std::string> texts;
  for (std::int64_t rank = 0; rank < rows.size(0); ++rank) {
    const auto* text =
        reinterpret_cast<const char*>(rows.const_data_ptr<std::uint8_t>() + rank * rows.size(1));
    texts.emplace_back(text, static_cast<std::size_t>(lengths.const_data_ptr<std::int64_t>()[rank]));
  }
  return texts;
}

// One exchange after the other, each under a number of its own.
class StoreExchange {
 public:
  StoreExchange(const World& world, const std::string& meeting)
      : store_(world.store->clone()),
        rank_(world.rank),
        size_(world.size),
        limit_(world.timeout),
        meeting_(meeting) {
    store_->setTimeout(limit_);
  }

  std::vector<std::string> operator()(const std::string& mine) {
    const std::string round = meeting_ + "/" + std::to_string(round_++) + "/";
    set_text(*store_, round + std::to_string(rank_), mine);
    std::vector<std::string> texts;
    for (int rank = 0; rank < size_; ++rank) {
      const AtStore at_store(rank, "a checkpoint");
      texts.push_back(text_at(*store_, round + std::to_string(rank)));
    }
    leave(round);
    return texts;
  }

 private:
  // Rank 0 may serve the store: it stays until all have read, or are gone.
  void leave(const std::string& round) {
    const auto left = [&](int rank) { return round + "left " + std::to_string(rank); };
    if (rank_ != 0) return set_text(*store_, left(rank_), "");
    const auto end = std::chrono::steady_clock::now() + limit_;
    for (int rank = 1; rank < size_; ++rank) {
      const auto rest =
          std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
      const AtStore at_store(rank, "a checkpoint");
      try {
        store_->wait({left(rank)}, std::max(rest, std::chrono::milliseconds(1)));
      } catch (const c10::Error&) {  // whoever needs it is told
      }
    }
  }

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  int size_;
  std::chrono::milliseconds limit_;
  std::string meeting_;
  int round_ = 0;
};

std::vector<std::string> alone(const std::string& mine) { return {mine}; }

}  // namespace

int this_rank() {
  const auto context = current_rank_or_null();
  return context ? context->world().rank : 0;
}

Gather gather_by_collective() {
  const auto context = current_rank_or_null();
  if (!context || context->world().size == 1) return alone;
  TORCH_CHECK_NOT_IMPLEMENTED(traits_of(context->world().backend).has_peers,
                              "meshtorch: fake ranks hold no data to save or load\n  in: a world of ",
                              context->world().size, " fake ranks\n  do: use threads or gloo");
  return [context](const std::string& mine) { return gather_texts(mine, *context); };
}

Gather gather_by_store(const std::string& meeting) {
  const auto context = current_rank_or_null();
  if (!context || context->world().size == 1) return alone;
  TORCH_CHECK_NOT_IMPLEMENTED(context->world().store,
                              "meshtorch: these ranks have no store through which they could agree in the "
                              "background\n  in: save_async\n  do: use save, or start the ranks with spawn");
  const auto exchange = std::make_shared<StoreExchange>(context->world(), meeting);
  return [exchange](const std::string& mine) { return (*exchange)(mine); };
}

std::vector<Json> run_together(const Gather& gather, const std::function<Json()>& work) {
  std::exception_ptr failure;
  Json mine;
  try {
    mine["result"] = work();
  } catch (const std::exception&) {
    failure = std::current_exception();
    mine["error"] = error_text(failure);
  }
  std::vector<Json> results;
  std::string peer_failure;
  const auto replace_bad_utf8 = Json::error_handler_t::replace;
  for (const std::string& text : gather(mine.dump(-1, ' ', false, replace_bad_utf8))) {
    const Json theirs = Json::parse(text);
    if (theirs.contains("error") && peer_failure.empty())
      peer_failure = theirs.at("error").get<std::string>() + "\n  on: rank " + std::to_string(results.size());
    results.push_back(theirs.value("result", Json()));
  }
  if (failure) std::rethrow_exception(failure);
  TORCH_CHECK(peer_failure.empty(), peer_failure);
  return results;
}

void as_value_error(const std::function<void()>& check) {
  try {
    check();
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
}

}  // namespace meshtorch::checkpoint::internal

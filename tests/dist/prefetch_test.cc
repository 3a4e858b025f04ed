// Gathering ahead of time: by the order of events, never by the clock.
#include <ATen/record_function.h>

#include "data_parallel_training.h"
#include "trace_order.h"

namespace meshtorch::testing {
namespace {

using Events = std::vector<std::string>;
thread_local Events* told = nullptr;

void tell(const std::string& event) {
  if (told != nullptr) told->push_back(event);
}

// Collectives as they are started on this thread, and what modules tell, while it lives.
class EventLog {
 public:
  EventLog() {
    told = &events_;
    handle_ =
        at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& call)
                                                                  -> std::unique_ptr<at::ObserverContext> {
                                     const std::string name = call.name();
                                     if (name == "c10d::_allgather_base_") tell("gather");
                                     if (name == "c10d::reduce_scatter_tensor_coalesced_") tell("scatter");
                                     return nullptr;
                                   }).scopes({at::RecordScope::FUNCTION}));
  }
  ~EventLog() {
    at::removeCallback(handle_);
    told = nullptr;
  }
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  Events take() { return std::exchange(events_, {}); }

 private:
  Events events_;
  at::CallbackHandle handle_;
};

// Tells when it computes.
struct TellingImpl : torch::nn::Module {
  explicit TellingImpl(int64_t number) : linear(6, 6), number_(number) { register_module("linear", linear); }
  torch::Tensor forward(torch::Tensor x) {
    tell("forward " + std::to_string(number_));
    torch::Tensor y = torch::tanh(linear(x));
    y.register_hook([n = number_](const torch::Tensor&) { tell("backward " + std::to_string(n)); });
    return y * 2;
  }
  mt::nn::Linear linear;

 private:
  int64_t number_;
};
MESHTORCH_MODULE(Telling);

struct TalkImpl : torch::nn::Module {
  explicit TalkImpl(int64_t depth) : head(6, 6) {
    for (int64_t i = 0; i < depth; ++i) {
      layers.push_back(Telling(i));
      register_module("layer" + std::to_string(i), layers.back());
      order.push_back(i);
    }
    register_module("head", head);
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const int64_t i : order) x = layers[static_cast<std::size_t>(i)](x);
    return head(x);
  }
  std::vector<Telling> layers;
  std::vector<int64_t> order;
  mt::nn::Linear head;
};
MESHTORCH_MODULE(Talk);

struct ShardedTalk {
  explicit ShardedTalk(int64_t depth) : talk(filled(Talk(depth))) {
    for (Telling& layer : talk->layers) handles.push_back(mt::fully_shard(*layer, batches(2)));
    mt::fully_shard(*talk, batches(2));
  }
  Talk talk;
  std::vector<mt::FSDPModule> handles;
};

TEST(Prefetch, TheNextGroupIsGatheredBeforeThisOneComputes) {
  on_ranks(2, [](int rank) {
    ShardedTalk model(3);
    const torch::Tensor batch = numbers({2, 6}, torch::kDouble, rank);
    EventLog log;
    model.talk(batch).sum().backward();
    // The first pass records the order; backward knows it already.
    EXPECT_EQ(log.take(),
              (Events{"gather", "gather", "forward 0", "gather", "forward 1", "gather", "forward 2",  //
                      "gather", "scatter", "gather", "backward 2", "scatter", "gather", "backward 1",
                      "scatter", "backward 0", "scatter"}));
    for (int step = 0; step < 2; ++step) {
      model.talk(batch).sum().backward();
      EXPECT_EQ(log.take(),
                (Events{"gather", "gather", "gather", "forward 0", "gather", "forward 1", "forward 2",  //
                        "gather", "scatter", "gather", "backward 2", "scatter", "gather", "backward 1",
                        "scatter", "backward 0", "scatter"}));
    }
  });
}

// Gatherings in a trace, from their start to when they are needed, and what layers compute.
const std::map<std::string, std::string> kGatherings{{"c10d::_allgather_base_", "starts"},
                                                     {"meshtorch::wait_all_gather_into_tensor", "is needed"},
                                                     {"aten::tanh", "computes"},
                                                     {"aten::tanh_backward", "computes"}};

TEST(Prefetch, ATraceShowsTheGatheringOfOneLayerAroundWhatTheOneBeforeComputes) {
  on_ranks(2, [](int rank) {
    ShardedTalk model(3);
    const torch::Tensor batch = numbers({2, 6}, torch::kDouble, rank);
    model.talk(batch).sum().backward();
    mt::TraceMode trace;
    const torch::Tensor loss = model.talk(batch).sum();
    trace.stop();
    EXPECT_EQ(events_in(trace, kGatherings),
              (Events{"starts", "is needed",              // the whole model's own
                      "starts",                           // layer 0
                      "is needed", "starts", "computes",  // 0, beside the gathering of 1
                      "is needed", "starts", "computes",  // 1, beside that of 2
                      "is needed", "computes"}));
    mt::TraceMode backward_trace;
    loss.backward();
    backward_trace.stop();
    EXPECT_EQ(events_in(backward_trace, kGatherings),
              (Events{"starts",                           // layer 2, while the whole model's own goes back
                      "is needed", "starts", "computes",  // 2, beside the gathering of 1
                      "is needed", "starts", "computes",  // 1, beside that of 0
                      "is needed", "computes"}));
  });
}

TEST(Prefetch, ModulesMayBeNamed) {
  on_ranks(2, [](int rank) {
    ShardedTalk model(3);
    auto& handles = model.handles;
    handles[0].set_modules_to_forward_prefetch({handles[1], handles[2]});
    handles[2].set_modules_to_backward_prefetch({handles[1], handles[0]});
    const torch::Tensor batch = numbers({2, 6}, torch::kDouble, rank);
    EventLog log;
    model.talk(batch).sum().backward();
    EXPECT_EQ(log.take(), (Events{"gather", "gather", "gather", "gather", "forward 0", "forward 1",
                                  "forward 2", "gather", "scatter", "gather", "gather", "backward 2",
                                  "scatter", "backward 1", "scatter", "backward 0", "scatter"}));
    Talk plain = filled(Talk(3));
    (plain(numbers({2, 6}, torch::kDouble, 0)).sum() + plain(numbers({2, 6}, torch::kDouble, 1)).sum())
        .div(2)
        .backward();
    expect_same_parameters(plain, model.talk, /*gradients=*/true, 1e-12);
  });
}

TEST(Prefetch, AnotherOrderThanBeforeIsRightAndLeavesNothingBehind) {
  on_ranks(2, [](int) {
    ShardedTalk model(4);
    Talk plain = filled(Talk(4));
    int64_t seed = 0;
    for (const std::vector<int64_t>& order : std::vector<std::vector<int64_t>>{
             {0, 1, 2, 3}, {0, 1, 2, 3}, {0, 3, 1, 1}, {2}, {0, 1, 2, 3}, {}, {3, 2, 1, 0}}) {
      model.talk->order = plain->order = order;
      model.talk->zero_grad();
      plain->zero_grad();
      const torch::Tensor batch = numbers({2, 6}, torch::kDouble, ++seed);
      plain(batch).sum().backward();
      model.talk(batch).sum().backward();
      expect_same_parameters(plain, model.talk, /*gradients=*/true, 1e-12);
      for (const mt::FSDPModule& handle : model.handles) EXPECT_FALSE(handle.is_unsharded());
    }
  });
}

// Changes a later layer, as a schedule that is computed during the pass would.
struct ChangingImpl : torch::nn::Module {
  ChangingImpl() : first(6, 6), second(6, 6) {
    register_module("first", first);
    register_module("second", second);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = first(x);
    {
      const torch::NoGradGuard no_grad;
      second->bias.add_(1);
    }
    return second(x);
  }
  mt::nn::Linear first, second;
};
MESHTORCH_MODULE(Changing);

TEST(Prefetch, WhatIsWrittenAfterItWasSentCounts) {
  on_ranks(2, [](int) {
    Changing plain = filled(Changing());
    Changing module = filled(Changing());
    mt::fully_shard(*module->first, batches(2));
    mt::fully_shard(*module->second, batches(2));
    mt::fully_shard(*module, batches(2));
    const torch::Tensor batch = numbers({2, 6}, torch::kDouble);
    for (int step = 0; step < 3; ++step)
      EXPECT_TRUE(is_close(module(batch).detach(), plain(batch).detach(), 1e-12)) << "step " << step;
  });
}

TEST(Prefetch, RanksThatGatherOtherGroupsAreTold) {
  on_ranks(2, [](int rank) {
    ShardedTalk model(2);
    const std::string error = error_of([&] {
      Mlp mlp = filled(Mlp(6, rank == 0 ? 4 : 6));
      mt::FSDPModule handle = mt::fully_shard(*mlp, batches(2), {.src_data_rank = std::nullopt});
      handle.unshard();
    });
    EXPECT_NE(error.find("the ranks of a group disagree on a collective"), std::string::npos) << error;
    EXPECT_NE(error.find("rank 0: all_gather_into_tensor(chunks of"), std::string::npos) << error;
    EXPECT_NE(error.find("for fully_shard of"), std::string::npos) << error;
    // The group is as usable as before.
    EXPECT_EQ(mt::all_reduce(torch::ones({}), "sum", batches(2)).item<float>(), 2);
    EXPECT_TRUE(model.talk(numbers({2, 6}, torch::kDouble)).requires_grad());
  });
}

TEST(Prefetch, ARankThatHasReturnedIsNamed) {
  if (ranks_are_processes()) GTEST_SKIP() << "makes ranks of its own";
  const std::string error = error_of([] {
    mt::spawn(2, [](int rank) {
      Mlp mlp = filled(Mlp(6, 5));
      mt::FSDPModule handle = mt::fully_shard(*mlp, batches(2));
      if (rank == 0) handle.unshard();
    });
  });
  EXPECT_NE(error.find("rank 1 has already returned"), std::string::npos) << error;
  EXPECT_NE(error.find("rank 1 has not come to it"), std::string::npos) << error;
}

TEST(Prefetch, ManyAtOnceAreFinishedInTurn) {
  on_ranks(2, [](int) {
    ShardedTalk model(5);
    Talk plain = filled(Talk(5));
    for (mt::FSDPModule& handle : model.handles) handle.start_unshard();
    for (auto handle = model.handles.rbegin(); handle != model.handles.rend(); ++handle) handle->unshard();
    for (std::size_t i = 0; i < 5; ++i)
      EXPECT_TRUE(is_equal(model.talk->layers[i]->linear->weight.detach(),
                           plain->layers[i]->linear->weight.detach()));
  });
}

}  // namespace
}  // namespace meshtorch::testing

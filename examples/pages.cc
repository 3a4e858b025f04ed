// The programs on the pages: what stands between two marks of one name is shown there (tests/docs_test.py
// compares).
#include <meshtorch/meshtorch.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <unistd.h>

#include <filesystem>
#include <iostream>

namespace mt = meshtorch;
namespace cp = meshtorch::checkpoint;
namespace st = meshtorch::safetensors;

namespace {

struct MlpImpl : torch::nn::Module {
  MlpImpl(int64_t width, int64_t hidden) : up(width, hidden), down(hidden, width) {
    register_module("up", up);
    register_module("down", down);
  }
  torch::Tensor forward(torch::Tensor x) { return down(torch::gelu(up(x))); }
  mt::nn::Linear up, down;
};
MESHTORCH_MODULE(Mlp);

torch::Tensor row_softmax(const torch::Tensor& self, int64_t dim) { return torch::softmax(self, dim); }

}  // namespace

// [register_an_operator]
TORCH_LIBRARY(my, library) { library.def("row_softmax(Tensor self, int dim) -> Tensor"); }
TORCH_LIBRARY_IMPL(my, CPU, library) { library.impl("row_softmax", &row_softmax); }
// [register_an_operator]

namespace {

void tensors(const mt::DeviceMesh& made) {
  // [split_a_tensor]
  const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
  const mt::DTensor x =
      mt::distribute_tensor(torch::arange(20.0).view({5, 4}), mesh, {mt::Shard(0), mt::Shard(1)});
  const torch::Tensor y = torch::relu(torch::mm(x, x.t()));  // any torch:: function
  const torch::Tensor whole = mt::full_tensor(y);            // on every rank
  // [split_a_tensor]
  TORCH_CHECK(mesh == made && whole.size(0) == 5);
  // [explain_a_redistribution]
  std::cout << mt::explain_redistribute(x, {mt::Replicate(), mt::Shard(0)});
  // [explain_a_redistribution]
}

void rules(const mt::DeviceMesh& mesh) {
  // [register_a_rule]
  mt::register_rule("my::row_softmax", "a.. s! b.. -> a.. s! b..",
                    {.at = {{"s", "dim"}}, .samples = {{torch::ones({4, 4}), 1}}});
  // [register_a_rule]
  const mt::DTensor x = mt::ones({4, 6}, mesh["tp"], {mt::Shard(0)});
  const mt::DTensor w = mt::ones({6, 2}, mesh["tp"], {mt::Replicate()});
  // [explain_a_call]
  std::cout << mt::explain("aten::mm", x, w);
  // [explain_a_call]
  TORCH_CHECK(mt::explain_call("aten::mm", {x, w}) == mt::explain("aten::mm", x, w));
  const mt::RuleChecks before = mt::rule_checks();
  mt::set_rule_checks(mt::RuleChecks::own);
  mt::set_rule_checks(before);
}

void models(const mt::DeviceMesh& mesh) {
  const mt::ParallelizePlan plan{{"up", mt::ColwiseParallel()}, {"down", mt::RowwiseParallel()}};
  // [a_model_without_memory]
  Mlp model{nullptr};
  {
    const mt::on_meta_device shapes_only;  // tensors made here have a shape and no memory
    model = Mlp(8, 16);
  }
  mt::parallelize_module(*model, mesh["tp"], plan);
  mt::materialize(*model, torch::kCPU);  // no values yet: initialise it, or load a checkpoint
  // [a_model_without_memory]
  const mt::DTensor logits = mt::zeros({3, 8}, mesh["tp"], {mt::Shard(1)});
  const torch::Tensor target = torch::tensor({0, 3, 7});
  {
    // [a_loss_on_split_classes]
    const mt::loss_parallel scope;
    const torch::Tensor loss = torch::nn::functional::cross_entropy(logits, target);  // logits: Shard(1)
    // [a_loss_on_split_classes]
    TORCH_CHECK(loss.item<double>() > 2);
  }
  // [a_function_on_shards]
  const auto multiply = [](const mt::DeviceMesh& m, torch::Tensor a, torch::Tensor b) {
    return mt::all_reduce(torch::mm(a, b), "sum", m);
  };
  const auto product = mt::local_map(multiply, {.out_placements = {mt::Replicate()},
                                                .in_placements = {{}, {mt::Shard(1)}, {mt::Shard(0)}},
                                                .redistribute_inputs = true});
  // [a_function_on_shards]
  const mt::DTensor square = mt::ones({4, 4}, mesh["tp"], {mt::Shard(0)});
  TORCH_CHECK(product(mesh["tp"], square, square).sum().item<double>() == 64);
}

torch::Tensor train_step(Mlp& model, const torch::Tensor& tokens, const torch::Tensor& labels,
                         const torch::Tensor& positions) {
  const mt::implicit_replication weights_are_whole;
  return torch::mse_loss(model(tokens + positions.unsqueeze(1)), labels);
}

void long_sequences() {
  const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {1, 4, 1}, {"dp", "cp", "tp"});
  const torch::Tensor query = torch::ones({1, 2, 8, 4}), key = query, value = query;
  {
    // [attention_on_a_split_sequence]
    mt::DTensor q = mt::distribute_tensor(query, mesh["cp"], {mt::Shard(2)});  // batch, heads, sequence, size
    mt::DTensor k = mt::distribute_tensor(key, mesh["cp"], {mt::Shard(2)});
    mt::DTensor v = mt::distribute_tensor(value, mesh["cp"], {mt::Shard(2)});
    torch::Tensor out = at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true);
    // [attention_on_a_split_sequence]
    TORCH_CHECK(mt::to_local(out).size(2) == 2);
  }
  torch::manual_seed(1);
  Mlp model(8, 16);
  torch::Tensor tokens = torch::ones({2, 8, 8}), labels = tokens.clone(), positions = torch::arange(8.0);
  // [a_balanced_sequence]
  {
    mt::context_parallel scope(mesh["cp"], {tokens, labels, positions}, {1, 1, 0});  // their sequence dims
    torch::Tensor loss = train_step(model, tokens, labels, positions);
    loss.backward();
  }  // tokens, labels and positions have their data again
  // [a_balanced_sequence]
  // [a_sequence_on_three_axes]
  auto ids = mt::distribute_tensor(tokens, mesh, {mt::Shard(0), mt::Replicate(), mt::Replicate()});
  mt::context_parallel scope(mesh["cp"], {ids}, {1});  // on dp, cp, tp: ids is S(0), S(1), R
  // [a_sequence_on_three_axes]
  TORCH_CHECK(mt::parse_rotate_method("ring") == mt::RotateMethod::ring);
}

void messages(int rank, const mt::DeviceMesh& mesh) {
  // [a_collective]
  const torch::Tensor total = mt::all_reduce(torch::ones(3), "sum", mesh["tp"]);
  const torch::Tensor rows = mt::all_gather_tensor(torch::full({1, 2}, rank), /*dim=*/0, {});  // of all ranks
  // [a_collective]
  TORCH_CHECK(total[0].item<double>() == 2 && rows.size(0) == 4);
  const torch::Tensor hidden = torch::ones({8, 4}).requires_grad_();
  // [send_and_receive]
  if (rank == 0) mt::send(hidden, /*to=*/1).backward();  // backward receives the gradient
  if (rank == 1) {
    auto x = mt::recv({8, 4}, torch::requires_grad(), /*from=*/0);  // of a tensor that requires gradients
    x.square().sum().backward();                                    // sends the gradient
  }
  // [send_and_receive]
  const int next = (rank + 1) % 4, last = (rank + 3) % 4;
  const mt::SentAndReceived ring = mt::batch_send_recv({mt::SendTo{torch::full({2}, rank), next}},
                                                       {mt::ReceiveFrom{{2}, torch::kLong, last}});
  TORCH_CHECK(ring.received[0][0].item<int64_t>() == last);
  // [a_tensor_to_another_mesh]
  const mt::DeviceMesh first(torch::kCPU, {0, 1}), second(torch::kCPU, {1, 2, 3});
  const mt::DTensor x = mt::distribute_tensor(torch::arange(15.0).view({5, 3}), first, {mt::Shard(0)});
  const mt::DTensor moved = x.redistribute(second, {mt::Shard(1)});
  // [a_tensor_to_another_mesh]
  const mt::DTensorSpec spec = moved.spec();
  TORCH_CHECK(spec.mesh == second && spec.shape[1] == 3);
  try {
    mt::all_reduce(torch::ones(rank == 0 ? 4 : 3), "sum", {});
  } catch (const mt::DisagreementError& error) {  // on every rank; nothing was sent
    if (rank == 0) std::cout << error.what_without_backtrace() << "\n";
  }
}

void random_numbers(const mt::DeviceMesh& mesh) {
  // [random_numbers]
  mt::manual_seed(17);  // the same on every rank
  mt::DTensor w = mt::randn({64, 32}, mesh, {mt::Shard(0), mt::Replicate()});
  w.uniform_(-0.1, 0.1);                                     // also torch::nn::init::kaiming_uniform_(w), …
  torch::Tensor y = torch::dropout(w, 0.1, /*train=*/true);  // one mask for the whole of w
  // [random_numbers]
  TORCH_CHECK(mt::is_dtensor(y));
}

void checkpoints(const mt::DeviceMesh& mesh, const std::string& directory, const std::string& folder) {
  Mlp model(8, 16);
  mt::fully_shard(
      *model, mesh["dp"],
      {.reshard_after_forward = mt::ReshardAfterForward(false), .offload_policy = mt::CPUOffloadPolicy()});
  torch::optim::AdamW adamw(model->parameters());
  const std::string config_json = "{}";
  {
    // [save_and_load]
    int64_t step = 0;
    cp::State state;
    state.add("model", *model).add("optimizer", adamw, *model).add("step", step).add_random();
    if (cp::exists(directory)) cp::load(directory, state);    // whatever mesh saved it
    cp::save(directory, state);                               // all ranks together
    cp::AsyncSave saving = cp::save_async(directory, state);  // returns when this rank's part is copied
    saving.wait();
    // [save_and_load]
  }
  // [hugging_face_files]
  cp::export_hf(folder, *model, config_json);  // all ranks write one plain checkpoint together
  const st::Files files(folder);               // model.safetensors, or an index and several files
  st::load_parameters(*model, files);          // each rank its shards
  const at::Tensor rows = files.read("up.weight", {0, 0}, {4, 8});  // a box of one tensor
  // [hugging_face_files]
  const st::Entry& entry = files.at("up.weight");
  TORCH_CHECK(rows.size(0) == 4 && entry.shape[0] == 16);
}

void seeing(const mt::DeviceMesh& mesh) {
  Mlp net(8, 16);
  const mt::ParallelizePlan plan{{"up", mt::ColwiseParallel()}, {"down", mt::RowwiseParallel()}};
  mt::parallelize_module(*net, mesh["tp"], plan);
  torch::optim::AdamW optimizer(net->parameters());
  const auto train_step = [&] {
    optimizer.zero_grad();
    net(torch::ones({4, 8})).square().mean().backward();
    optimizer.step();
  };
  {
    // [a_report]
    mt::CommDebugMode comm;
    mt::DecisionLog decisions;
    train_step();
    comm.stop();
    decisions.stop();
    mt::TraceMode trace;
    train_step();
    const auto traces = trace.gather();                                      // every rank calls it
    const auto memory = mt::gather_memory(mt::memory_of(*net, &optimizer));  // every rank calls it
    if (mt::get_rank() == 0) {
      mt::report::write("run.html", {.title = "My net",
                                     .module = net.get(),
                                     .plan = &plan,
                                     .comm = &comm,
                                     .decisions = &decisions,
                                     .traces = traces,
                                     .memory = memory});
    }
    // [a_report]
    const mt::report::Phase phase{"forward and backward", comm.get_comm_counts()};
    mt::CommCounts counts = phase.counts;
    const mt::CommStatistics sent = counts.at(mt::Collective::all_reduce);
    const std::map<std::string, mt::ModuleCommCounts> by_module = comm.get_module_counts();
    TORCH_CHECK(sent.count > 0 && !by_module.empty());
  }
  {
    // [count_collectives]
    mt::CommDebugMode comm;  // counting starts
    train_step();
    std::cout << comm.table();
    // [count_collectives]
  }
  {
    // [a_trace]
    mt::TraceMode trace;  // recording starts, on this rank
    train_step();
    trace.save("trace.json");  // all ranks call it, rank 0 writes one file
    // [a_trace]
  }
  // [why_data_moved]
  mt::DecisionLog log;  // of this rank, until stop() or its end
  train_step();
  std::cout << log.table();
  // [why_data_moved]
  const mt::DataParallelEstimate estimate{.groups = {"up", "down"}};
  TORCH_CHECK(mt::estimate_memory(*Mlp(8, 16), mesh["dp"], estimate).size() == 2);
}

// A style of one's own: the parameters are replicated.
class Replicated : public mt::ParallelStyle {
 public:
  void apply(torch::nn::Module& module, const mt::DeviceMesh& mesh, const mt::StyleContext&) const override {
    const mt::EdgeFn input_fn([](torch::nn::Module&, mt::Values& values, const mt::DeviceMesh& on) {
      values[0] = mt::distribute_tensor(values[0], on, {mt::Replicate()});
    });
    mt::distribute_module(module, mesh, {}, input_fn);
  }
  std::string name() const override { return "Replicated"; }
};

void own_style(const mt::DeviceMesh& mesh) {
  using NormImpl = mt::nn::RMSNormImpl;  // what mt::nn::RMSNorm holds
  const NormImpl norm(mt::nn::RMSNormOptions(8));
  TORCH_CHECK(norm.weight.size(0) == 8);
  Mlp model(8, 16);
  mt::parallelize_module(*model, mesh["tp"], {{"up", Replicated()}});
  TORCH_CHECK(mt::is_dtensor(model->up->weight));
  TORCH_CHECK(mt::parse_reduce_op("prod") == mt::ReduceOp::product);
  mt::check_assertion(mt::hash_value(mt::Shard(0)) == mt::hash_value(mt::Shard(0)),
                      "equal placements have one hash");
}

}  // namespace

int main() {
  // [ranks_that_are_threads]
  mt::spawn(2, [](int rank) { TORCH_CHECK(mt::get_rank() == rank); });
  // [ranks_that_are_threads]
  const auto folder =
      std::filesystem::temp_directory_path() / ("meshtorch_pages_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  std::filesystem::current_path(folder);
  mt::spawn(4, [&](int rank) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    tensors(mesh);
    rules(mesh);
    models(mesh);
    long_sequences();
    messages(rank, mesh);
    random_numbers(mesh);
    checkpoints(mesh, folder / "checkpoint", folder / "exported");
    seeing(mesh);
    own_style(mesh);
  });
  std::filesystem::current_path("/");
  std::filesystem::remove_all(folder);
  std::cout << "the pages are true\n";
}

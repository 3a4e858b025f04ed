// Calls of pooling, padding, interpolation and patches, with and without a batch.
#include "call_table.h"

namespace meshtorch::testing {

using namespace inputs;

namespace {

Ints spatial(int64_t dims, int64_t size) { return Ints(static_cast<std::size_t>(dims), size); }

// A batch of 5, if any, and 4 channels.
Ints with_channels(bool batched, Ints space) {
  Ints shape = batched ? Ints{5, 4} : Ints{4};
  shape.insert(shape.end(), space.begin(), space.end());
  return shape;
}

void add_pools(CallTable& t, int64_t dims, bool batched) {
  const bool is_2d = dims == 2;
  const Ints whole = with_channels(batched, spatial(dims, 4)),
             pooled = with_channels(batched, spatial(dims, 2));
  const auto name = [&](const char* two, const char* three) { return is_2d ? two : three; };
  t.add(name("avg_pool2d", "avg_pool3d"), {x(whole)}, {{"kernel_size", spatial(dims, 2)}});
  t.add(name("avg_pool2d_backward", "avg_pool3d_backward"), {x(pooled, 2), x(whole)},
        {{"kernel_size", spatial(dims, 2)}, {"stride", spatial(dims, 2)}, {"padding", spatial(dims, 0)}});
  t.add(name("_adaptive_avg_pool2d", "_adaptive_avg_pool3d"), {x(whole)},
        {{"output_size", spatial(dims, 3)}});
  t.add(name("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward"), {x(pooled, 2), x(whole)});
  t.add(name("max_pool2d_with_indices", "max_pool3d_with_indices"), {distinct(whole)},
        {{"kernel_size", spatial(dims, 2)}});
  t.add(name("adaptive_max_pool2d", "adaptive_max_pool3d"), {distinct(whole)},
        {{"output_size", spatial(dims, 2)}});
  const auto indices = is_2d ? std::get<1>(torch::max_pool2d_with_indices(distinct(whole), 2))
                             : std::get<1>(torch::max_pool3d_with_indices(distinct(whole), 2));
  t.add(name("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward"),
        {x(pooled, 2), distinct(whole), indices},
        {{"kernel_size", spatial(dims, 2)},
         {"stride", spatial(dims, 2)},
         {"padding", spatial(dims, 0)},
         {"dilation", spatial(dims, 1)}});
  t.add(name("adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward"),
        {x(pooled, 2), distinct(whole), indices});
  t.add(name("max_unpool2d", "max_unpool3d"), {x(pooled), indices},
        {{"output_size", spatial(dims, 4)}, {"stride", spatial(dims, 2)}, {"padding", spatial(dims, 0)}});
}

void add_pads(CallTable& t, int64_t dims, bool batched) {
  const Ints whole = with_channels(batched, spatial(dims, 4)),
             padded = with_channels(batched, spatial(dims, 6));
  const Ints by = spatial(2 * dims, 1);
  for (const std::string kind : {"reflection", "replication"}) {
    const std::string op = kind + "_pad" + std::to_string(dims) + "d";
    t.add(op, {x(whole)}, {{"padding", by}});
    t.add(op + "_backward", {x(padded, 2), x(whole)}, {{"padding", by}});
  }
}

void add_interpolations(CallTable& t) {
  const auto add = [&](const std::string& op, int64_t dims, const std::map<std::string, c10::IValue>& how) {
    std::map<std::string, c10::IValue> arguments = how;
    arguments["output_size"] = spatial(dims, 6);
    t.add(op, {x(with_channels(true, spatial(dims, 3)))}, arguments);
    arguments["input_size"] = with_channels(true, spatial(dims, 3));
    t.add(op + "_backward", {x(with_channels(true, spatial(dims, 6)))}, arguments);
  };
  for (int64_t dims = 1; dims <= 3; ++dims) {
    add("upsample_nearest" + std::to_string(dims) + "d", dims, {});
    add("_upsample_nearest_exact" + std::to_string(dims) + "d", dims, {});
  }
  const std::map<std::string, c10::IValue> corners{{"align_corners", false}};
  add("upsample_linear1d", 1, corners);
  for (const char* op : {"upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa",
                         "_upsample_bicubic2d_aa", "_upsample_lanczos2d_aa"})
    add(op, 2, corners);
  add("upsample_trilinear3d", 3, corners);
  const std::map<std::string, c10::IValue> grid{
      {"interpolation_mode", 0}, {"padding_mode", 0}, {"align_corners", false}};
  t.add({"grid_sampler_2d", "_grid_sampler_2d_cpu_fallback"}, {x({5, 4, 3, 3}), unit({5, 2, 3, 2})}, grid);
  t.add("grid_sampler_3d", {x({5, 4, 3, 3, 3}), unit({5, 2, 3, 2, 3})}, grid);
}

void add_patches(CallTable& t) {
  const std::map<std::string, c10::IValue> patch{{"kernel_size", Ints{2, 2}},
                                                 {"dilation", Ints{1, 1}},
                                                 {"padding", Ints{0, 0}},
                                                 {"stride", Ints{1, 1}},
                                                 {"output_size", Ints{4, 4}}};
  t.add("im2col", {x({5, 3, 4, 4})}, patch);
  t.add("im2col", {x({3, 4, 4})}, patch);
  t.add("col2im", {x({5, 12, 9})}, patch);
}

}  // namespace

std::vector<Call> pooling_calls() {
  CallTable t;
  for (const bool batched : {true, false}) {
    for (const int64_t dims : {2, 3}) add_pools(t, dims, batched);
    for (const int64_t dims : {1, 2, 3}) add_pads(t, dims, batched);
  }
  add_interpolations(t);
  add_patches(t);
  return std::move(t).calls();
}

}  // namespace meshtorch::testing

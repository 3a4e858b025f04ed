// Calls of operators that rearrange, cut, join or make tensors.
#include "call_table.h"

namespace meshtorch::testing {

using namespace inputs;

namespace {

void add_views(CallTable& t) {
  const auto view = [&](const Ints& from, const Ints& to) {
    t.add({"view", "_unsafe_view", "view_copy", "_reshape_copy"}, {x(from)}, {{"size", to}});
  };
  view({6, 4}, {2, 3, 4});
  view({2, 3, 4}, {6, 4});
  view({5, 4}, {-1});
  view({4, 6}, {6, 4});
  view({8, 3}, {4, 2, 3});
  view({12}, {3, 1, 4});
  view({1, 6, 1}, {3, 2});
  view({4, 2, 6}, {8, 3, 2});
  view({}, {1, 1});
  view({1}, {});
  t.add({"view.dtype", "view_copy.dtype"}, {x({5, 4})}, {{"dtype", at::kFloat}});
  t.add({"expand", "expand_copy"}, {x({5, 1})}, {{"size", Ints{3, 5, 4}}});
  t.add({"expand", "expand_copy"}, {x({5, 4})}, {{"size", Ints{-1, 4}}});
  t.add({"expand", "expand_copy"}, {x({1, 4})}, {{"size", Ints{1, 4}}});
  t.add({"permute", "permute_copy"}, {x({2, 3, 4})}, {{"dims", Ints{2, 0, -2}}});
  t.add({"transpose.int", "transpose_copy.int"}, {x({2, 3, 4})}, {{"dim0", 0}, {"dim1", -1}});
  t.add({"t", "t_copy"}, {x({5, 4})});
  t.add({"t", "t_copy"}, {x({5})});
  t.add({"squeeze", "squeeze_copy"}, {x({5, 1, 4, 1})});
  t.add({"squeeze.dim", "squeeze_copy.dim"}, {x({5, 1, 4})}, {{"dim", 1}});
  t.add({"squeeze.dim", "squeeze_copy.dim"}, {x({5, 1, 4})}, {{"dim", 0}});
  t.add({"squeeze.dims", "squeeze_copy.dims"}, {x({5, 1, 4, 1})}, {{"dim", Ints{0, -1}}});
  t.add({"unsqueeze", "unsqueeze_copy"}, {x({5, 4})}, {{"dim", 1}});
  t.add({"unsqueeze", "unsqueeze_copy"}, {x({5, 4})}, {{"dim", -1}});
  t.add({"view_as_real", "view_as_real_copy"}, {torch::complex(x({5, 4}), x({5, 4}, 2))});
  t.add({"view_as_complex", "view_as_complex_copy"}, {x({5, 4, 2})});
}

void add_parts(CallTable& t) {
  t.add({"select.int", "select_copy.int"}, {x({5, 4, 3})}, {{"dim", 1}, {"index", 2}});
  t.add({"unbind.int", "unbind_copy.int"}, {x({5, 3, 4})}, {{"dim", 1}});
  t.add({"split.Tensor", "split_copy.Tensor", "unsafe_split.Tensor"}, {x({4, 7})},
        {{"split_size", 3}, {"dim", 1}});
  t.add({"split_with_sizes", "split_with_sizes_copy", "unsafe_split_with_sizes"}, {x({7, 4})},
        {{"split_sizes", Ints{2, 5}}, {"dim", 0}});
  t.add("narrow_copy", {x({5, 4})}, {{"dim", 1}, {"start", 1}, {"length", 2}});
  t.add({"slice.Tensor", "slice_copy.Tensor"}, {x({7, 4})},
        {{"dim", 0}, {"start", 1}, {"end", 6}, {"step", 2}});
  t.add({"slice.Tensor", "slice_copy.Tensor"}, {x({7, 4})}, {{"dim", 0}});
  t.add("slice_backward", {x({3, 4})},
        {{"input_sizes", Ints{7, 4}}, {"dim", 0}, {"start", 1}, {"end", 6}, {"step", 2}});
  t.add("select_backward", {x({5, 3})}, {{"input_sizes", Ints{5, 4, 3}}, {"dim", 1}, {"index", 2}});
  t.add({"unfold", "unfold_copy"}, {x({7, 4})}, {{"dimension", 0}, {"size", 3}, {"step", 2}});
  t.add("unfold_backward", {x({3, 4, 3})},
        {{"input_sizes", Ints{7, 4}}, {"dim", 0}, {"size", 3}, {"step", 2}});
  t.add({"diagonal", "diagonal_copy"}, {x({5, 4, 3})}, {{"offset", 1}, {"dim1", 0}, {"dim2", 2}});
  t.add("diag_embed", {x({5, 4})}, {{"offset", -1}});
  t.add("diagonal_backward", {x({4, 3})},
        {{"input_sizes", Ints{5, 4, 3}}, {"offset", 0}, {"dim1", 0}, {"dim2", 2}});
  t.add({"tril", "triu"}, {x({3, 5, 4})}, {{"diagonal", 1}});
  t.add("trace", {x({5, 4})});
}

void add_rearrangements(CallTable& t) {
  t.add("repeat", {x({5, 4})}, {{"repeats", Ints{2, 1, 3}}});
  t.add("flip", {x({5, 4, 3})}, {{"dims", Ints{0, -1}}});
  t.add("roll", {x({5, 4})}, {{"shifts", Ints{2}}, {"dims", Ints{0}}});
  t.add("roll", {x({5, 4})}, {{"shifts", Ints{3}}, {"dims", Ints{}}});
  t.add("rot90", {x({5, 4, 3})}, {{"k", 1}, {"dims", Ints{0, 2}}});
  t.add("pixel_shuffle", {x({3, 4, 2, 2})}, {{"upscale_factor", 2}});
  t.add("pixel_unshuffle", {x({3, 2, 4, 4})}, {{"downscale_factor", 2}});
  t.add({"channel_shuffle", "native_channel_shuffle"}, {x({3, 4, 2, 2})}, {{"groups", 2}});
  t.add("constant_pad_nd", {x({5, 4, 3})}, {{"pad", Ints{1, 2, 0, 0, 0, 1}}, {"value", 3}});
}

void add_joins(CallTable& t) {
  t.add("cat", {Tensors{x({5, 4}), x({3, 4}, 2), x({1, 4}, 3)}}, {{"dim", 0}});
  t.add("cat", {Tensors{x({5, 4}), x({5, 2}, 2)}}, {{"dim", -1}});
  t.add("cat", {Tensors{x({5, 4}), x({0})}}, {{"dim", 0}});
  t.add({"stack", "_stack"}, {Tensors{x({5, 4}), x({5, 4}, 2)}}, {{"dim", 1}});
  t.add({"stack", "_stack"}, {Tensors{x({5, 4}), x({5, 4}, 2)}}, {{"dim", -1}});
  t.add("slice_scatter", {x({7, 4}), x({3, 4}, 2)}, {{"dim", 0}, {"start", 1}, {"end", 6}, {"step", 2}});
  t.add("select_scatter", {x({5, 4}), x({5}, 2)}, {{"dim", 1}, {"index", 2}});
}

void add_new_tensors(CallTable& t) {
  for (const Ints& size : {Ints{5, 4}, Ints{3}}) {
    t.add({"new_empty", "new_zeros", "new_ones"}, {x({5, 4})}, {{"size", size}});
    t.add("new_full", {x({5, 4})}, {{"size", size}, {"fill_value", 2.5}});
  }
  for (const at::ScalarType type : {at::kFloat, at::kLong, at::kBool})
    t.add("_to_copy", {x({5, 4})}, {{"dtype", type}});
  t.add("_to_copy", {x({5, 4})});
}

}  // namespace

std::vector<Call> shape_calls() {
  CallTable t;
  add_views(t);
  add_parts(t);
  add_rearrangements(t);
  add_joins(t);
  add_new_tensors(t);
  return std::move(t).calls();
}

}  // namespace meshtorch::testing

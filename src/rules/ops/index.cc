// Rules of operators that look up, or write to, the places that an index tensor names.
#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>

#include "rules/ops/by_dims.h"

namespace meshtorch::internal {
namespace {

// The dim that is indexed, counted from the front; nothing if there is no such dim.
std::optional<std::int64_t> indexed_dim(const OpArguments& call) {
  const std::int64_t rank = rank_of(call.shape("self"));
  return fits_a_rule(rank) ? wrapped(call.integer("dim"), rank) : std::nullopt;
}

// ---- embedding ----

// Counting how often an index occurs needs all of them.
RuleUse embedding_dense_backward(const OpArguments& call) {
  if (call.flag("scale_grad_by_freq")) return {"*i..! d, i..! -> _ d"};
  return {"*i.. d, i.. -> _ d"};
}

void add_embedding(RuleTable& ops) {
  ops.add("embedding", "*v d, i.. -> i.. d").local({LocalChange::Kind::mask_indices, "indices", "v"});
  ops.choose("embedding_dense_backward", embedding_dense_backward);
}

// ---- an index along one dim, the same for all others ----

// `rule` names the dim `s`. An index without dims, which counts as one of size 1, is for `whole`.
RuleUse along_dim(const OpArguments& call, Rule rule, Rule whole) {
  const auto dim = indexed_dim(call);
  if (!dim || call.shape("index").size() != 1) return {whole};
  return {rule, {.lengths = {}, .positions = {{"s", *dim}}, .sizes = {}}};
}

// The source has the sizes of `self`, but at the indexed dim that of the index. Each rank writes to the
// places it holds.
RuleUse with_source(const OpArguments& call, Rule rule, Rule whole) {
  const auto dim = indexed_dim(call);
  const Shape index = call.shape("index");
  Shape expected = call.shape("self");
  const bool is_along_dim = dim && index.size() == 1;
  if (is_along_dim) expected[static_cast<std::size_t>(*dim)] = index[0];
  if (call.shape("source") != expected) return {whole};
  RuleUse use = along_dim(call, rule, whole);
  if (is_along_dim) use.changes = {{LocalChange::Kind::mask_writes, "index", "s"}};
  return use;
}

// Along a split dim each rank gives what it holds, if that is not more than there is.
RuleUse index_select(const OpArguments& call) {
  const auto dim = indexed_dim(call);
  const bool may_split = dim && call.shape("index").size() == 1 &&
                         call.shape("index")[0] <= call.shape("self")[static_cast<std::size_t>(*dim)];
  RuleUse use =
      along_dim(call, may_split ? Rule("*a.. s b.., i -> a.. i b..") : Rule("*a.. s! b.., i -> a.. i b.."),
                "_.., _.. -> _..");
  if (may_split) use.changes = {{LocalChange::Kind::mask_indices, "index", "s"}};
  return use;
}

void add_along_dim(RuleTable& ops) {
  ops.choose("index_select", index_select);
  // The same number everywhere is its own maximum, minimum and average.
  ops.choose("index_fill.int_Scalar",
             [](const OpArguments& call) {
               return along_dim(call, "a.. s! b.., _ -> a.. s! b..", "_.., _.. -> _..");
             })
      .keeps({{ReduceOp::min, ReduceOp::min, 0},
              {ReduceOp::max, ReduceOp::max, 0},
              {ReduceOp::avg, ReduceOp::avg, 0}});
  ops.choose("index_fill.int_Tensor", [](const OpArguments& call) {
    return along_dim(call, "+a.. s! b.., _, +_.. -> a.. s! b..", "+_.., _.., +_.. -> _..");
  });
  // What is added may be split along the index; what replaces may not.
  ops.choose("index_add", [](const OpArguments& call) {
    return with_source(call, "+a.. s b.., i, *a.. i b.. -> a.. s b..", "+_.., _.., *_.. -> _..");
  });
  ops.choose("index_copy", [](const OpArguments& call) {
    return with_source(call, "+a.. s b.., i!, +a.. i! b.. -> a.. s b..", "+_.., _.., +_.. -> _..");
  });
  ops.choose("index_reduce", [](const OpArguments& call) {
    return with_source(call, "a.. s b.., i!, a.. i! b.. -> a.. s b..", "_.., _.., _.. -> _..");
  });
}

// ---- an index for each element ----

// The dims of each tensor. `s` is the indexed dim of `self`, `i` that of the index and of `src`.
struct ElementIndex {
  std::string self, index, src;
};

// Nothing is broadcast: a dim in which the index is smaller counts from the front, and is whole.
std::optional<ElementIndex> element_index(const OpArguments& call, bool is_i_whole, bool is_s_whole = true) {
  const auto dim = indexed_dim(call);
  const Shape self = call.shape("self");
  const Shape index = call.shape("index");
  const Shape src = call.has("src") ? call.shape("src") : index;
  if (!dim || index.size() != self.size() || src.size() != self.size()) return std::nullopt;
  ElementIndex text;
  for (std::size_t d = 0; d < self.size(); ++d) {
    const std::string number = std::to_string(d);
    if (d == static_cast<std::size_t>(*dim)) {
      const bool is_equal = src[d] == index[d];
      text.self += is_s_whole ? " s!" : " s";
      text.index += is_i_whole || !is_equal ? " i!" : " i";
      text.src += is_equal ? " i" : " _";
    } else if (index[d] == self[d] && src[d] == self[d]) {
      text.self += " x" + number;
      text.index += " x" + number;
      text.src += " x" + number;
    } else {
      text.self += " x" + number + "!";
      text.index += " y" + number + "!";
      text.src += " _";
    }
  }
  return text;
}

std::int64_t count_of(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

// As index_select.
RuleUse gather(const OpArguments& call) {
  const bool may_split = count_of(call.shape("index")) <= count_of(call.shape("self"));
  const auto text = element_index(call, false, !may_split);
  if (!text) return {"_.., _.. -> _.."};
  RuleUse use{Rule::parse("*" + text->self + "," + text->index + " ->" + text->index)};
  if (may_split) use.changes = {{LocalChange::Kind::mask_indices, "index", "s"}};
  return use;
}

RuleUse written_where_held(const std::string& rule) {
  RuleUse use{Rule::parse(rule)};
  use.changes = {{LocalChange::Kind::mask_writes, "index", "s"}};
  return use;
}

// Numbers are written, or combined with what is there; each rank writes to the places it holds.
RuleUse scatter_value(const OpArguments& call) {
  const auto text = element_index(call, true, false);
  if (!text) return {"_.., _.. -> _.."};
  return written_where_held(text->self + "," + text->index + " ->" + text->self);
}

RuleUse scatter_src(const OpArguments& call, const std::string& self_mark, const std::string& src_mark,
                    bool is_i_whole = true) {
  const auto text = element_index(call, is_i_whole, false);
  if (!text) return {"_.., _.., _.. -> _.."};
  return written_where_held(self_mark + text->self + "," + text->index + "," + src_mark + text->src + " ->" +
                            text->self);
}

void add_gather_and_scatter(RuleTable& ops) {
  ops.choose("gather", gather);
  ops.choose({"scatter.value", "scatter.value_reduce"}, scatter_value);
  ops.choose("scatter.src", [](const OpArguments& call) { return scatter_src(call, "+", "+"); });
  ops.choose("scatter_add", [](const OpArguments& call) { return scatter_src(call, "+", "*", false); });
  ops.choose({"scatter.reduce", "scatter_reduce.two"},
             [](const OpArguments& call) { return scatter_src(call, "", ""); });
}

// ---- indices for some dims, or a mask over them ----

// The dims of `self`, of the indices, and of what is taken from `self` or put there.
struct Indexed {
  std::string self, indices, taken;
  Shape taken_sizes;  // of places
  bool is_mask = false;
  std::vector<std::pair<std::string, std::int64_t>> behind =
      {};  // the dims that follow the places, with sizes
};

// Dims that no index names may be split, and so may the places, if all indices have one shape. They come
// where the indexed dims were, or first if dims lie between those. Of masks, one alone.
std::optional<Indexed> indexed_dims(const OpArguments& call) {
  using Index = OpArguments::Index;
  const Shape self = call.shape("self");
  const std::vector<Shape> shapes = call.shapes("indices");
  const std::vector<Index> indices = call.indices("indices");
  if (shapes.empty() || self.size() >= TensorPattern::kMaxDims) return std::nullopt;
  const auto masks = std::count(indices.begin(), indices.end(), Index::mask);
  const bool is_mask = masks == 1 && shapes.size() == 1;
  if ((masks > 0 && !is_mask) ||
      !std::all_of(shapes.begin(), shapes.end(), [&](const Shape& s) { return s == shapes[0]; })) {
    return std::nullopt;
  }
  const auto first = std::find_if(indices.begin(), indices.end(), [](Index i) { return i != Index::none; });
  const auto last_end =
      std::find_if(indices.rbegin(), indices.rend(), [](Index i) { return i != Index::none; }).base();
  const bool is_adjacent = std::find(first, last_end, Index::none) == last_end;
  const std::string places = is_mask ? " _" : " i..";
  Indexed text{"", is_mask ? " _.." : " i..", is_adjacent ? "" : places, is_adjacent ? Shape{} : shapes[0],
               is_mask};
  std::size_t d = 0;
  const auto keep = [&] {
    const std::string name = " x" + std::to_string(d);
    text.self += name;
    text.taken += name;
    text.behind.emplace_back(name, self[d]);
    text.taken_sizes.push_back(self[d++]);
  };
  for (auto index = indices.begin(); index != indices.end(); ++index) {
    const std::size_t width = *index == Index::mask ? shapes[0].size() : 1;
    if (d + width > self.size()) return std::nullopt;
    if (*index == Index::none) {
      keep();
      continue;
    }
    if (index == first && is_adjacent) {
      text.taken += places;
      text.behind.clear();
      text.taken_sizes.insert(text.taken_sizes.end(), shapes[0].begin(), shapes[0].end());
    }
    for (std::size_t end = d + width; d < end; ++d) text.self += " s" + std::to_string(d) + "!";
  }
  while (d < self.size()) keep();
  return text;
}

RuleUse index(const OpArguments& call) {
  const auto text = indexed_dims(call);
  if (!text) return {"_.., _..[] -> _.."};
  return {Rule::parse("*" + text->self + "," + text->indices + "[] ->" + text->taken)};
}

// One number for all that a mask names: element by element.
RuleUse put_number_by_mask(const OpArguments& call, const Indexed& text) {
  std::string self, mask;
  for (std::size_t d = 0; d < call.shape("self").size(); ++d) {
    const std::string number = std::to_string(d);
    self += " x" + number;
    if (text.self.find(" s" + number + "!") != std::string::npos) mask += " x" + number;
  }
  return {Rule::parse(self + "," + mask + "[], ->" + self)};
}

// The dims of what is put: those of what would be taken, or the last of them, the same for all places.
std::optional<std::string> values_dims(const Shape& values, const Indexed& text) {
  if (!text.is_mask && values == text.taken_sizes) return text.taken;
  if (values.size() > text.behind.size()) return std::nullopt;
  std::string dims;
  const std::size_t first = text.behind.size() - values.size();
  for (std::size_t d = 0; d < values.size(); ++d) {
    const auto& [name, size] = text.behind[first + d];
    if (values[d] != size && values[d] != 1) return std::nullopt;
    dims += values[d] == size ? name : " 1";
  }
  return dims;
}

// What is added may be split along the places; what replaces may not.
RuleUse index_put(const OpArguments& call) {
  const bool is_added = call.flag("accumulate");
  const auto text = indexed_dims(call);
  if (text && text->is_mask && call.shape("values").empty() && !is_added)
    return put_number_by_mask(call, *text);
  const auto values = text ? values_dims(call.shape("values"), *text) : std::nullopt;
  if (!values) return {is_added ? Rule("+_.., _..[], *_.. -> _..") : Rule("+_.., _..[], +_.. -> _..")};
  const std::string places = text->is_mask ? " _.." : is_added ? " i.." : " i..!";
  return {Rule::parse("+" + text->self + "," + places + "[]," + (is_added ? "*" : "+") + *values + " ->" +
                      text->self)};
}

void add_indexing(RuleTable& ops) {
  ops.choose({"index.Tensor", "_unsafe_index.Tensor"}, index);
  ops.choose({"index_put", "_unsafe_index_put", "_index_put_impl"}, index_put);
}

// ---- an index into all elements, or into a sorted list ----

// The largest of some values has the last place of them, and the smallest the first.
std::vector<KeptReduction> keeps_places_of(int values) {
  return {{ReduceOp::max, ReduceOp::max, values}, {ReduceOp::min, ReduceOp::min, values}};
}

// A place in a sorted list is how many of its elements come before: each part of the list counts its own.
RuleUse searchsorted(const OpArguments& call) {
  const bool is_list = call.shape("sorted_sequence").size() == 1;
  if (call.has("sorter"))
    return {is_list ? Rule("_, a.., _? -> a..") : Rule("a.. _, a.. i, a.. _? -> a.. i")};
  return {is_list ? Rule("b, a.., _? -> a..") : Rule("a.. b, a.. i, a.. _? -> a.. i")};
}

// An element is in a set if it is in a part of it, and not in it if it is in none.
RuleUse isin(const OpArguments& call) {
  RuleUse use{"..., t.. -> ..."};
  use.contracted = call.flag("invert") ? ReduceOp::min : ReduceOp::max;
  return use;
}

void add_lookups(RuleTable& ops) {
  ops.add("take", "*_.., i.. -> i..");
  ops.add("bucketize.Tensor", "..., b -> ...").keeps(keeps_places_of(0));
  ops.choose("isin.Tensor_Tensor", isin);
  ops.choose("searchsorted.Tensor", searchsorted).keeps(keeps_places_of(1));
}

}  // namespace

void add_index_rules(RuleTable& ops) {
  add_embedding(ops);
  add_along_dim(ops);
  add_gather_and_scatter(ops);
  add_indexing(ops);
  add_lookups(ops);
}

}  // namespace meshtorch::internal

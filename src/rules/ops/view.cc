// Rules of operators that rearrange, cut or repeat: all linear; the call says what may be split.
#include <algorithm>
#include <optional>

#include "rules/table.h"

namespace meshtorch::internal {
namespace {

// Any arguments and any ranks: nothing is split, and a mistake is left for the operator to report.
const Rule kWhole = "*_.. -> _..";

constexpr auto kNoPosition = std::string_view::npos;

std::string name(std::size_t index) { return "x" + std::to_string(index); }

std::int64_t rank_of(const Shape& shape) { return static_cast<std::int64_t>(shape.size()); }

bool fits_a_rule(std::int64_t rank) { return rank <= TensorPattern::kMaxDims; }

// The dim that the argument counts, from the front; nothing if there is no such dim.
std::optional<std::int64_t> wrapped(std::int64_t dim, std::int64_t rank) {
  if (dim < -rank || dim >= rank) return std::nullopt;
  return dim < 0 ? dim + rank : dim;
}

// Which dims the list names; nothing if it names one that there is not.
std::optional<std::vector<bool>> marked(const std::vector<std::int64_t>& dims, std::int64_t rank) {
  std::vector<bool> is_marked(static_cast<std::size_t>(rank));
  for (const std::int64_t dim : dims) {
    const auto at = wrapped(dim, rank);
    if (!at) return std::nullopt;
    is_marked[static_cast<std::size_t>(*at)] = true;
  }
  return is_marked;
}

// One operand and one result, dim by dim.
struct Line {
  std::string operand = "*";
  std::string result = "->";

  void keep(std::size_t d) { add(" " + name(d), " " + name(d)); }
  void keep_whole(std::size_t d) { add(" " + name(d) + "!", " " + name(d)); }
  void add(const std::string& from, const std::string& to) {
    operand += from;
    result += to;
  }
  Rule rule() const { return Rule::parse(operand + " " + result); }
};

// ---- view ----

std::int64_t count_elements(const Shape& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

// The sizes with -1 filled in; nothing if they do not fit.
std::optional<Shape> resolved(Shape sizes, std::int64_t count) {
  const auto open = std::find(sizes.begin(), sizes.end(), -1);
  if (open != sizes.end()) {
    *open = 1;
    const std::int64_t others = count_elements(sizes);
    if (others <= 0 || count % others != 0) return std::nullopt;
    *open = count / others;
  }
  if (std::any_of(sizes.begin(), sizes.end(), [](std::int64_t size) { return size < 0; })) {
    return std::nullopt;
  }
  return count_elements(sizes) == count ? std::optional(sizes) : std::nullopt;
}

// Reads two shapes of equally many elements from the left. Between two places where both begin a
// dim, the dims of each are made of the same names, as far as the places of all dims divide each other.
class ViewRule {
 public:
  ViewRule(Shape from, Shape to) : from_(std::move(from)), to_(std::move(to)) {}

  RuleUse use(const std::string& size_argument) {
    while (next_group()) name_group();
    RuleUse use{Rule::parse("*" + from_text_ + " ->" + to_text_), {}};
    use.hints.sizes = sizes_;
    use.splits_inner = true;
    if (!sizes_.empty()) use.changes = {{LocalChange::Kind::result_sizes, size_argument}};
    return use;
  }

 private:
  // The end of each dim of a group, as the number of blocks of that size before it.
  using Ends = std::vector<std::int64_t>;

  static void skip_ones(const Shape& shape, std::size_t& at, std::string& text) {
    for (; at < shape.size() && shape[at] == 1; ++at) text += " 1";
  }

  // A dim of size 1 that stays one may be split: the first rank has it.
  void name_ones() {
    while (from_at_ < from_.size() && to_at_ < to_.size() && from_[from_at_] == 1 && to_[to_at_] == 1) {
      const std::string one = name(sizes_.size());
      sizes_[one] = 1;
      from_text_ += " " + one;
      to_text_ += " " + one;
      ++from_at_;
      ++to_at_;
    }
  }

  bool next_group() {
    name_ones();
    skip_ones(from_, from_at_, from_text_);
    skip_ones(to_, to_at_, to_text_);
    from_ends_.clear();
    to_ends_.clear();
    if (from_at_ == from_.size() || to_at_ == to_.size()) return false;
    from_ends_.push_back(from_[from_at_++]);
    to_ends_.push_back(to_[to_at_++]);
    while (from_ends_.back() != to_ends_.back()) {
      const bool from_is_behind = from_ends_.back() < to_ends_.back();
      Ends& ends = from_is_behind ? from_ends_ : to_ends_;
      const std::int64_t size = from_is_behind ? from_[from_at_++] : to_[to_at_++];
      ends.push_back(ends.back() * size);
    }
    return true;
  }

  void name_group() {
    Ends all;
    std::set_union(from_ends_.begin(), from_ends_.end(), to_ends_.begin(), to_ends_.end(),
                   std::back_inserter(all));
    all.erase(std::unique(all.begin(), all.end()), all.end());
    all.resize(nameable(all));
    if (!all.empty() && !(fits(from_ends_, all) && fits(to_ends_, all))) all.clear();
    std::vector<std::string> names;
    for (std::size_t i = 0; i < all.size(); ++i) {
      names.push_back(name(sizes_.size()));
      sizes_[names.back()] = i == 0 ? all[0] : all[i] / all[i - 1];
    }
    if (!all.empty() && !std::binary_search(from_ends_.begin(), from_ends_.end(), all.back())) {
      rest_ = name(sizes_.size());
      sizes_[rest_] = dim_end(all.back()) / all.back();
    }
    write(from_ends_, all, names, from_text_);
    write(to_ends_, all, names, to_text_);
  }

  // How many of the ends can be those of names: each divides the next, the last is one of the result, and the
  // dim of the operand in which it lies is cut evenly.
  std::size_t nameable(const Ends& all) const {
    std::size_t count = 1;
    while (count < all.size() && all[count] % all[count - 1] == 0) ++count;
    const auto can_be_last = [&](std::int64_t end) {
      return dim_end(end) % end == 0 && std::binary_search(to_ends_.begin(), to_ends_.end(), end);
    };
    while (count > 0 && !can_be_last(all[count - 1])) --count;
    return count;
  }

  // Where the dim of the operand ends in which `place` lies.
  std::int64_t dim_end(std::int64_t place) const {
    return *std::lower_bound(from_ends_.begin(), from_ends_.end(), place);
  }

  // A compound holds a limited number of names.
  static bool fits(const Ends& dims, const Ends& all) {
    std::int64_t begin = 0;
    for (const std::int64_t end : dims) {
      const auto is_inside = [&](std::int64_t e) { return e > begin && e <= end; };
      const bool has_rest = begin < all.back() && all.back() < end;
      if (std::count_if(all.begin(), all.end(), is_inside) + has_rest > DimPattern::kMaxNames) return false;
      begin = end;
    }
    return true;
  }

  // Each dim as the names that end inside it, and the rest of the last one; without names, as what cannot be
  // split.
  void write(const Ends& dims, const Ends& all, const std::vector<std::string>& names,
             std::string& text) const {
    std::size_t at = 0;
    std::int64_t begin = 0;
    for (const std::int64_t end : dims) {
      // Inner dims of size 1 end where the dim before them ends.
      if (begin == end) {
        text += " 1";
        continue;
      }
      std::string parts;
      const std::size_t first = at;
      for (; at < all.size() && all[at] <= end; ++at) parts += (at > first ? " " : "") + names[at];
      const bool has_rest = at > first && all[at - 1] < end;
      if (has_rest) parts += " " + rest_ + "!";
      text += at == first ? " _" : at - first + has_rest > 1 ? " (" + parts + ")" : " " + parts;
      begin = end;
    }
  }

  Shape from_, to_;
  std::size_t from_at_ = 0, to_at_ = 0;
  Ends from_ends_, to_ends_;
  std::string from_text_, to_text_;
  std::string rest_;  // of the operand's dim in which the last name of a group lies, if any
  std::map<std::string, std::int64_t> sizes_;
};

RuleUse view(const OpCall& call) {
  const Shape from = call.shape("self");
  const std::int64_t count = count_elements(from);
  const auto to = resolved(call.integers("size"), count);
  if (!to || count == 0 || !fits_a_rule(rank_of(from)) || !fits_a_rule(rank_of(*to))) {
    return {kWhole};
  }
  const RuleUse use = ViewRule(from, *to).use("size");
  // A size that only the operator can fill in, which it cannot where a rank has no elements.
  const bool is_open = call.integers("size") != *to && use.rule.text().find('_') != kNoPosition;
  return is_open ? RuleUse{kWhole} : use;
}

// A view of other items: the last dim may change its size.
RuleUse view_dtype(const OpCall& call) {
  if (call.shape("self").empty()) return {"_.. -> _.."};
  return {"a.. _ -> a.. _"};
}

// ---- operators that keep each dim, or not ----

RuleUse expand(const OpCall& call) {
  const Shape from = call.shape("self");
  const Shape to = call.integers("size");
  if (to.size() < from.size() || !fits_a_rule(rank_of(to))) return {kWhole};
  const std::size_t added = to.size() - from.size();
  Line line;
  for (std::size_t d = 0; d < to.size(); ++d) {
    if (d < added) {
      line.add("", " _");
    } else if (const std::int64_t size = from[d - added]; size == to[d] || to[d] == -1) {
      line.keep(d);
    } else {
      line.add(size == 1 ? " 1" : " _", " _");
    }
  }
  return {line.rule(), {}, ReduceOp::sum, {{LocalChange::Kind::result_sizes, "size"}}};
}

// Dim d of the result is dim order[d] of the operand.
Rule permuted(const std::vector<std::size_t>& order) {
  Line line;
  for (std::size_t d = 0; d < order.size(); ++d) line.add(" " + name(d), " " + name(order[d]));
  return line.rule();
}

RuleUse permute(const OpCall& call) {
  const std::int64_t rank = rank_of(call.shape("self"));
  std::vector<std::size_t> order;
  for (const std::int64_t dim : call.integers("dims")) {
    const auto at = wrapped(dim, rank);
    if (!at || std::count(order.begin(), order.end(), static_cast<std::size_t>(*at)) > 0) {
      return {kWhole};
    }
    order.push_back(static_cast<std::size_t>(*at));
  }
  if (rank_of(call.integers("dims")) != rank || !fits_a_rule(rank)) return {kWhole};
  return {permuted(order)};
}

Rule transposed(std::int64_t rank, std::int64_t dim0, std::int64_t dim1) {
  const auto a = wrapped(dim0, rank);
  const auto b = wrapped(dim1, rank);
  if (!a || !b || !fits_a_rule(rank)) return kWhole;
  std::vector<std::size_t> order;
  for (std::int64_t d = 0; d < rank; ++d) order.push_back(static_cast<std::size_t>(d));
  std::swap(order[static_cast<std::size_t>(*a)], order[static_cast<std::size_t>(*b)]);
  return permuted(order);
}

RuleUse transpose(const OpCall& call) {
  return {transposed(rank_of(call.shape("self")), call.integer("dim0"), call.integer("dim1"))};
}

RuleUse t(const OpCall& call) {
  const std::int64_t rank = rank_of(call.shape("self"));
  return {rank == 2 ? transposed(2, 0, 1) : Rule("*... -> ...")};
}

// A dim that must go may have size 1 on one rank only, so those that stay must be whole.
RuleUse squeezed(const Shape& shape, const std::optional<std::vector<bool>>& is_named) {
  if (!is_named || !fits_a_rule(rank_of(shape))) return {kWhole};
  Line line;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (!(*is_named)[d]) {
      line.keep(d);
    } else if (shape[d] == 1) {
      line.add(" 1", "");
    } else {
      line.keep_whole(d);
    }
  }
  return {line.rule()};
}

RuleUse squeeze(const OpCall& call) {
  const Shape shape = call.shape("self");
  return squeezed(shape, std::vector<bool>(shape.size(), true));
}

RuleUse squeeze_dim(const OpCall& call) {
  const Shape shape = call.shape("self");
  if (shape.empty()) return {kWhole};
  return squeezed(shape, marked({call.integer("dim")}, rank_of(shape)));
}

RuleUse squeeze_dims(const OpCall& call) {
  const Shape shape = call.shape("self");
  if (shape.empty()) return {kWhole};
  return squeezed(shape, marked(call.integers("dim"), rank_of(shape)));
}

RuleUse unsqueeze(const OpCall& call) {
  const auto at = wrapped(call.integer("dim"), rank_of(call.shape("self")) + 1);
  if (!at) return {kWhole};
  return {"*a.. b.. -> a.. 1 b..", {.lengths = {{"a", *at}}, .positions = {}, .sizes = {}}};
}

RuleUse repeat(const OpCall& call) {
  const Shape shape = call.shape("self");
  const std::vector<std::int64_t> repeats = call.integers("repeats");
  if (repeats.size() < shape.size() || !fits_a_rule(rank_of(repeats))) return {kWhole};
  const std::size_t added = repeats.size() - shape.size();
  Line line;
  for (std::size_t d = 0; d < repeats.size(); ++d) {
    if (d < added) {
      line.add("", " _");
    } else if (repeats[d] == 1) {
      line.keep(d);
    } else {
      line.add(" _", " _");
    }
  }
  return {line.rule()};
}

// The dims of the list are worked on as wholes.
RuleUse keep_whole(const Shape& shape, const std::vector<std::int64_t>& dims) {
  const auto is_whole = marked(dims, rank_of(shape));
  if (!is_whole || !fits_a_rule(rank_of(shape))) return {kWhole};
  Line line;
  for (std::size_t d = 0; d < shape.size(); ++d) (*is_whole)[d] ? line.keep_whole(d) : line.keep(d);
  return {line.rule()};
}

RuleUse flip(const OpCall& call) { return keep_whole(call.shape("self"), call.integers("dims")); }

RuleUse roll(const OpCall& call) {
  if (call.integers("dims").empty()) return {kWhole};  // rolls the elements in their order
  return keep_whole(call.shape("self"), call.integers("dims"));
}

RuleUse rot90(const OpCall& call) {
  const Shape shape = call.shape("self");
  const auto is_turned = marked(call.integers("dims"), rank_of(shape));
  if (!is_turned || !fits_a_rule(rank_of(shape))) return {kWhole};
  Line line;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    (*is_turned)[d] ? line.add(" _", " _") : line.keep(d);
  }
  return {line.rule()};
}

// ---- slices ----

RuleUse slice(const OpCall& call) {
  const Shape shape = call.shape("self");
  const auto at = wrapped(call.integer("dim"), rank_of(shape));
  if (!at) return {kWhole};
  const bool from_start = !call.has("start") || call.integer("start") == 0;
  const bool to_end = !call.has("end") || call.integer("end") >= shape[static_cast<std::size_t>(*at)];
  if (from_start && to_end && call.integer("step") == 1) return {"*... -> ..."};
  return {"*a.. s! b.. -> a.. _ b..", {.lengths = {}, .positions = {{"s", *at}}, .sizes = {}}};
}

// The gradient of a slice or of a select: zeros in a tensor of `input_sizes`, and one part filled.
RuleUse into_zeros(Rule rule, std::int64_t dim, std::int64_t rank) {
  const auto at = wrapped(dim, rank);
  if (!at) return {kWhole};
  return {rule,
          {.lengths = {{"a", *at}}, .positions = {}, .sizes = {}},
          ReduceOp::sum,
          {{LocalChange::Kind::result_sizes, "input_sizes"}}};
}

// The kernels broadcast a gradient of other sizes; no rule says so.
bool has_sizes(const Shape& gradient, const Shape& whole, const std::vector<std::int64_t>& but_for) {
  const auto is_left_out = marked(but_for, rank_of(whole));
  if (!is_left_out) return false;
  Shape kept;
  for (std::size_t d = 0; d < whole.size(); ++d) {
    if (!(*is_left_out)[d]) kept.push_back(whole[d]);
  }
  return gradient == kept;
}

RuleUse slice_backward(const OpCall& call) {
  Shape gradient = call.shape("grad_output");
  const auto at = wrapped(call.integer("dim"), rank_of(gradient));
  if (!at) return {kWhole};
  gradient.erase(gradient.begin() + *at);
  if (!has_sizes(gradient, call.integers("input_sizes"), {*at})) return {kWhole};
  return into_zeros("*a.. _ b.. -> a.. _ b..", call.integer("dim"), rank_of(call.integers("input_sizes")));
}

RuleUse select_backward(const OpCall& call) {
  if (!has_sizes(call.shape("grad_output"), call.integers("input_sizes"), {call.integer("dim")}))
    return {kWhole};
  return into_zeros("*a.. b.. -> a.. _ b..", call.integer("dim"), rank_of(call.integers("input_sizes")));
}

RuleUse unfold(const OpCall& call) {
  const auto at = wrapped(call.integer("dimension"), rank_of(call.shape("self")));
  if (!at) return {kWhole};
  return {"*a.. s! b.. -> a.. _ b.. _", {.lengths = {}, .positions = {{"s", *at}}, .sizes = {}}};
}

RuleUse unfold_backward(const OpCall& call) {
  return into_zeros("*a.. _ b.. w! -> a.. _ b..", call.integer("dim"), rank_of(call.integers("input_sizes")));
}

// ---- diagonals ----

// The tensor has `rank` dims, of which dim1 and dim2 hold the diagonal; its place is the last dim
// of the other tensor.
RuleUse diagonal_of(std::int64_t rank, std::int64_t dim1, std::int64_t dim2, bool is_operand) {
  const auto a = wrapped(dim1, rank);
  const auto b = wrapped(dim2, rank);
  if (!a || !b || *a == *b || !fits_a_rule(rank)) return {kWhole};
  std::string tensor, diagonal;
  for (std::int64_t d = 0; d < rank; ++d) {
    const bool is_kept = d != *a && d != *b;
    tensor += is_kept ? " " + name(static_cast<std::size_t>(d)) : " _";
    if (is_kept) diagonal += " " + name(static_cast<std::size_t>(d));
  }
  diagonal += " _";
  return {Rule::parse(is_operand ? "*" + tensor + " ->" + diagonal : "*" + diagonal + " ->" + tensor)};
}

RuleUse diagonal(const OpCall& call) {
  return diagonal_of(rank_of(call.shape("self")), call.integer("dim1"), call.integer("dim2"), true);
}

RuleUse diag_embed(const OpCall& call) {
  return diagonal_of(rank_of(call.shape("self")) + 1, call.integer("dim1"), call.integer("dim2"), false);
}

// `src` replaces the diagonal; additive in both.
RuleUse diagonal_scatter(const OpCall& call) {
  const RuleUse cut = diagonal(call);
  const std::string text(cut.rule.text());
  const std::size_t arrow = text.find(" ->");
  if (text == kWhole.text() || call.shape("src").size() + 1 != call.shape("self").size()) {
    return {"_.., _.. -> _.."};
  }
  const std::string tensor = text.substr(1, arrow - 1);
  return {Rule::parse("+" + tensor + ", +" + text.substr(arrow + 3) + " ->" + tensor)};
}

RuleUse diagonal_backward(const OpCall& call) {
  Shape gradient = call.shape("grad_output");
  if (!gradient.empty()) gradient.pop_back();
  if (!has_sizes(gradient, call.integers("input_sizes"), {call.integer("dim1"), call.integer("dim2")}))
    return {kWhole};
  RuleUse use =
      diagonal_of(rank_of(call.integers("input_sizes")), call.integer("dim1"), call.integer("dim2"), false);
  use.changes = {{LocalChange::Kind::result_sizes, "input_sizes"}};
  return use;
}

// What is pending stays pending: the elements only move.
void add_moves(RuleTable& ops, std::initializer_list<std::string_view> names,
               RuleUse (*choose)(const OpCall&)) {
  for (const std::string_view op : names) ops.choose(op, choose).keeps(keeps_any());
}

void add_shapes(RuleTable& ops) {
  add_moves(ops, {"view", "_unsafe_view", "view_copy", "_reshape_copy"}, view);
  ops.choose({"view.dtype", "view_copy.dtype"}, view_dtype);
  add_moves(ops, {"expand", "expand_copy"}, expand);
  add_moves(ops, {"permute", "permute_copy"}, permute);
  add_moves(ops, {"transpose.int", "transpose_copy.int"}, transpose);
  add_moves(ops, {"t", "t_copy"}, t);
  add_moves(ops, {"squeeze_copy"}, squeeze);
  add_moves(ops, {"squeeze_copy.dim"}, squeeze_dim);
  add_moves(ops, {"squeeze.dims", "squeeze_copy.dims"}, squeeze_dims);
  add_moves(ops, {"unsqueeze", "unsqueeze_copy"}, unsqueeze);
  ops.add({"view_as_real", "view_as_real_copy"}, "*a.. -> a.. _");
  ops.add({"view_as_complex", "view_as_complex_copy"}, "*a.. _ -> a..");
}

void add_parts(RuleTable& ops) {
  for (const char* op : {"select.int", "select_copy.int"}) {
    ops.add(op, "*a.. s! b.. -> a.. b..").at("s", "dim").keeps(keeps_any());
  }
  for (const char* op : {"unbind.int", "unbind_copy.int"}) {
    ops.add(op, "*a.. s! b.. -> a.. b..[]").at("s", "dim").keeps(keeps_any());
  }
  for (const char* op : {"split.Tensor", "split_copy.Tensor", "split_with_sizes", "split_with_sizes_copy",
                         "unsafe_split.Tensor", "unsafe_split_with_sizes"}) {
    ops.add(op, "*a.. s! b.. -> a.. _ b..[]").at("s", "dim").keeps(keeps_any());
  }
  ops.add("narrow_copy", "*a.. s! b.. -> a.. _ b..").at("s", "dim").keeps(keeps_any());
  add_moves(ops, {"slice.Tensor", "slice_copy.Tensor"}, slice);
  add_moves(ops, {"slice_backward"}, slice_backward);
  add_moves(ops, {"select_backward"}, select_backward);
  add_moves(ops, {"unfold", "unfold_copy"}, unfold);
  ops.choose("unfold_backward", unfold_backward);
  add_moves(ops, {"diagonal", "diagonal_copy"}, diagonal);
  add_moves(ops, {"diag_embed"}, diag_embed);
  add_moves(ops, {"diagonal_backward"}, diagonal_backward);
  add_moves(ops, {"diagonal_scatter"}, diagonal_scatter);
  ops.add({"tril", "triu"}, "*a.. m! n! -> a.. m! n!", keeps_any());
  ops.add("trace", "*_ _ ->");
}

void add_rearrangements(RuleTable& ops) {
  add_moves(ops, {"repeat"}, repeat);
  add_moves(ops, {"flip"}, flip);
  add_moves(ops, {"roll"}, roll);
  add_moves(ops, {"rot90"}, rot90);
  ops.add("pixel_shuffle", "*a.. _ _ _ -> a.. _ _ _").keeps(keeps_any());
  // The kernel of LibTorch 2.13 gives other sizes for an empty batch.
  ops.add("pixel_unshuffle", "*_.. -> _..");
  ops.add({"channel_shuffle", "native_channel_shuffle"}, "*n c! a.. -> n c! a..", keeps_any());
}

}  // namespace

void add_view_rules(RuleTable& ops) {
  add_shapes(ops);
  add_parts(ops);
  add_rearrangements(ops);
}

}  // namespace meshtorch::internal

// The rule of view: which dims of the shape before and of the shape after are made of the same parts.
#include "rules/ops/reshape.h"

#include <algorithm>
#include <iterator>

#include "rules/ops/by_dims.h"

namespace meshtorch::internal {
namespace {

constexpr auto kNoPosition = std::string_view::npos;

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
      const std::string one = dim_name(sizes_.size());
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
      names.push_back(dim_name(sizes_.size()));
      sizes_[names.back()] = i == 0 ? all[0] : all[i] / all[i - 1];
    }
    if (!all.empty() && !std::binary_search(from_ends_.begin(), from_ends_.end(), all.back())) {
      rest_ = dim_name(sizes_.size());
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

}  // namespace

RuleUse reshape_rule(const OpArguments& call) {
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

}  // namespace meshtorch::internal

// Binding of a rule to shapes: the lengths of runs, the names of every dim, then sizes and sites.
#include "rules/bind.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <utility>

#include "core/number_text.h"

namespace meshtorch::internal {
namespace {

[[noreturn]] void fail(const std::string& wrong, std::string_view rule, const std::string& advice) {
  throw std::invalid_argument("meshtorch: " + wrong + "\n  in the rule `" + std::string(rule) +
                              "`\n  do: " + advice);
}

bool is_open_run(DimKind kind) { return kind == DimKind::one_run || kind == DimKind::unmatched_run; }

std::string element_of(std::string_view run, std::int64_t index) {
  return std::string(run) + "[" + std::to_string(index) + "]";
}

// What one dim of one tensor is made of, once every run has a length.
struct Cell {
  DimKind kind = DimKind::named;
  std::vector<std::string> names;
};

// Binds the tensors of one element of a paired rule, or all tensors of any other.
class Binder {
 public:
  Binder(const RulePatterns& patterns, const Hints& hints, BoundRule& bound, int element)
      : patterns_(patterns), hints_(hints), bound_(bound), element_(element) {
    for (std::size_t t = 0; t < bound.tensors.size(); ++t) {
      const int of = bound.tensors[t].element;
      if (!bound.paired || of < 0 || of == element) tensors_.push_back(static_cast<int>(t));
    }
  }

  void run() {
    solve_lengths();
    expand();
    solve_sizes();
    place_factors();
  }

 private:
  // The lengths of `runs` sum up to `total`.
  struct Equation {
    std::vector<std::string> runs;
    std::int64_t total = 0;
    int tensor = 0;
  };

  bool is_operand(int t) const { return t < bound_.operand_count; }
  BoundTensor& tensor(int t) const { return bound_.tensors[t]; }
  const TensorPattern& pattern(int t) const {
    const int argument = tensor(t).argument + (is_operand(t) ? 0 : patterns_.operand_count);
    return patterns_.tensors[argument];
  }
  std::string run_name(int t, const DimPattern& dim) const {
    return is_open_run(dim.kind) ? "#" + std::to_string(t) : std::string(dim.names[0]);
  }
  std::string describe(int t) const {
    return "operand " + std::to_string(tensor(t).argument) + ", `" + to_string(pattern(t), patterns_) +
           "`, of shape " + shape_text(tensor(t).shape);
  }

  // The equation for the first `dims` patterns of a tensor, which cover `total` dims.
  Equation equation(int t, int dims, std::int64_t total) const {
    Equation e{.runs = {}, .total = total, .tensor = t};
    for (int d = 0; d < dims; ++d) {
      const DimPattern& dim = pattern(t).dims[d];
      if (dim.kind == DimKind::run || is_open_run(dim.kind)) {
        e.runs.push_back(run_name(t, dim));
      } else {
        --e.total;
      }
    }
    return e;
  }

  std::optional<Equation> position_equation(const std::string& name, std::int64_t position) const {
    for (int t : tensors_) {
      if (!is_operand(t) || !pattern(t).holds(name)) continue;
      const auto rank = static_cast<std::int64_t>(tensor(t).shape.size());
      if (position < -rank || position > rank) {
        fail("`" + name + "` cannot begin at dim " + std::to_string(position) + ": " + describe(t),
             bound_.rule, "give a dim that the tensor has");
      }
      return equation(t, pattern(t).find(name), position < 0 ? position + rank : position);
    }
    return std::nullopt;
  }

  void solve_lengths() {
    lengths_ = hints_.lengths;
    std::vector<Equation> equations;
    for (const auto& [name, position] : hints_.positions) {
      if (auto e = position_equation(name, position)) equations.push_back(*std::move(e));
    }
    for (int t : tensors_) {
      if (!is_operand(t) || pattern(t).is_ellipsis()) continue;
      equations.push_back(
          equation(t, pattern(t).dim_count, static_cast<std::int64_t>(tensor(t).shape.size())));
    }
    bool learned = true;
    while (learned) {
      learned = false;
      for (Equation& e : equations) learned |= solve(e);
    }
    for (const Equation& e : equations) {
      if (e.runs.empty()) continue;
      // Of two or more, at most one is open and has no name.
      const std::string& run = e.runs[0][0] == '#' ? e.runs[1] : e.runs[0];
      fail("the length of `" + run + "..` is not known: " + describe(e.tensor), bound_.rule,
           "give a hint: the length of a run, or the position of a name");
    }
  }

  bool solve(Equation& e) {
    std::erase_if(e.runs, [&](const std::string& run) {
      const auto known = lengths_.find(run);
      if (known != lengths_.end()) e.total -= known->second;
      return known != lengths_.end();
    });
    if (e.total < 0 || (e.runs.empty() && e.total > 0)) {
      fail("rank " + std::to_string(tensor(e.tensor).shape.size()) +
               " does not fit the pattern: " + describe(e.tensor),
           bound_.rule, "give a tensor of the rank that the operator takes");
    }
    if (e.runs.size() != 1) return false;
    lengths_[e.runs[0]] = e.total;
    e = {.runs = {}, .total = 0, .tensor = e.tensor};
    return true;
  }

  void expand() {
    cells_.resize(bound_.tensors.size());
    for (int t : tensors_) {
      if (is_operand(t) && pattern(t).is_ellipsis()) {
        broadcast_rank_ = std::max(broadcast_rank_, tensor(t).shape.size());
      }
    }
    // Results first: an ellipsis in an operand is read against the first of them.
    for (int t : tensors_) {
      if (!is_operand(t)) expand_tensor(t);
    }
    for (int t : tensors_) {
      if (is_operand(t)) expand_tensor(t);
    }
  }

  void expand_tensor(int t) {
    std::vector<Cell>& cells = cells_[t];
    for (int d = 0; d < pattern(t).dim_count; ++d) {
      const DimPattern& dim = pattern(t).dims[d];
      if (dim.kind == DimKind::ellipsis) {
        cells = ellipsis_cells(t);
      } else if (dim.kind == DimKind::run) {
        for (std::int64_t k = 0; k < length_of(t, dim); ++k) {
          cells.push_back({.kind = DimKind::named, .names = {element_of(dim.names[0], k)}});
        }
      } else if (is_open_run(dim.kind) && is_operand(t)) {
        const DimKind kind = dim.kind == DimKind::one_run ? DimKind::one : DimKind::unmatched;
        cells.insert(cells.end(), static_cast<std::size_t>(length_of(t, dim)), {kind, {}});
      } else {
        cells.push_back({.kind = dim.kind, .names = {dim.names.begin(), dim.names.begin() + dim.name_count}});
      }
    }
  }

  std::int64_t length_of(int t, const DimPattern& dim) const {
    const auto known = lengths_.find(run_name(t, dim));
    if (known != lengths_.end()) return known->second;
    fail("the length of `" + run_name(t, dim) + "..` is not known", bound_.rule,
         "give its length as a hint: the operands that hold it are absent");
  }

  std::vector<Cell> ellipsis_cells(int t) const {
    std::vector<Cell> cells;
    if (!is_operand(t) || patterns_.tensors[patterns_.operand_count].is_ellipsis()) {
      const std::size_t rank = is_operand(t) ? tensor(t).shape.size() : broadcast_rank_;
      for (std::size_t k = rank; k > 0; --k) {
        cells.push_back({DimKind::named, {element_of("...", -static_cast<std::int64_t>(k))}});
      }
      return cells;
    }
    const auto first_result =
        std::find_if_not(tensors_.begin(), tensors_.end(), [&](int other) { return is_operand(other); });
    cells = cells_[*first_result];
    const std::size_t rank = tensor(t).shape.size();
    if (rank > cells.size()) {
      fail("rank " + std::to_string(rank) + " is more than the result's, " + std::to_string(cells.size()) +
               ": " + describe(t),
           bound_.rule, "give a tensor that broadcasts to the result");
    }
    cells.erase(cells.begin(), cells.end() - static_cast<std::ptrdiff_t>(rank));
    return cells;
  }

  void solve_sizes() {
    sizes_ = hints_.sizes;
    for_each_operand_dim([&](int t, std::size_t d, const Cell& cell) {
      const std::int64_t size = tensor(t).shape[d];
      if (cell.kind == DimKind::one && size != 1) {
        fail("dim " + std::to_string(d) + " must have size 1, not " + std::to_string(size) + ": " +
                 describe(t),
             bound_.rule, "give the tensor that keepdim makes");
      }
      if (cell.names.size() != 1) return;
      std::int64_t& known = sizes_.try_emplace(cell.names[0], size).first->second;
      if (known == 1 && !hints_.sizes.contains(cell.names[0])) known = size;
      if (size != known && size != 1) fail_mismatch(t, d, cell, known);
    });
    bool learned = true;
    while (learned) {
      learned = false;
      for_each_operand_dim([&](int t, std::size_t d, const Cell& cell) {
        if (cell.names.size() > 1) learned |= solve_compound(t, d, cell);
      });
    }
  }

  // Learns the only part of a compound whose size is not known, as a quotient.
  bool solve_compound(int t, std::size_t d, const Cell& cell) {
    const std::int64_t size = tensor(t).shape[d];
    std::int64_t product = 1;
    const std::string* unknown = nullptr;
    for (const std::string& name : cell.names) {
      const auto known = sizes_.find(name);
      if (known != sizes_.end()) {
        product *= known->second;
      } else if (std::exchange(unknown, &name) != nullptr) {
        return false;
      }
    }
    if (size == 1 && product != 1) return false;  // broadcast: tells nothing
    if (unknown == nullptr) {
      if (product != size) fail_mismatch(t, d, cell, product);
      return false;
    }
    if (product == 0) return false;
    if (size % product != 0) fail_mismatch(t, d, cell, product);
    sizes_[*unknown] = size / product;
    return true;
  }

  [[noreturn]] void fail_mismatch(int t, std::size_t d, const Cell& cell, std::int64_t known) const {
    std::string names;
    for (const std::string& name : cell.names) names.append(names.empty() ? "" : " ").append(name);
    fail("size " + std::to_string(tensor(t).shape[d]) + " of dim " + std::to_string(d) + " does not fit `" +
             names + "`, which is " + std::to_string(known) + " elsewhere: " + describe(t),
         bound_.rule, "give tensors whose shapes agree");
  }

  void place_factors() {
    for (int t : tensors_) {
      const std::vector<Cell>& cells = cells_[t];
      for (std::size_t d = 0; d < cells.size(); ++d) {
        const std::int64_t size = size_of(cells[d]);
        if (is_operand(t)) {
          const bool is_broadcast = tensor(t).shape[d] == 1 && size != 1;
          if (!is_broadcast) place(t, d, cells[d]);
        } else if (is_open_run(cells[d].kind)) {
          tensor(t).tail =
              cells[d].kind == DimKind::one_run ? BoundTensor::Tail::ones : BoundTensor::Tail::unknown;
        } else {
          tensor(t).shape.push_back(cells[d].kind == DimKind::unmatched ? -1 : size);
          place(t, d, cells[d]);
        }
      }
    }
  }

  void place(int t, std::size_t d, const Cell& cell) {
    for (std::size_t k = 0; k < cell.names.size(); ++k) {
      Site site{.tensor = t, .dim = static_cast<int>(d), .slot = static_cast<int>(k)};
      for (std::size_t j = k + 1; j < cell.names.size(); ++j) {
        site.inner *= sizes_.at(cell.names[j]);
      }
      for (std::size_t j = 0; j < k; ++j) site.outer *= sizes_.at(cell.names[j]);
      factor(cell.names[k]).sites.push_back(site);
    }
  }

  Factor& factor(const std::string& name) {
    for (Factor& f : bound_.factors) {
      if (f.name == name && f.element == element_) return f;
    }
    const bool whole = patterns_.is_whole(name.substr(0, name.find('[')));
    bound_.factors.push_back({name, sizes_.at(name), whole, element_, {}});
    return bound_.factors.back();
  }

  std::int64_t size_of(const Cell& cell) const {
    std::int64_t product = 1;
    for (const std::string& name : cell.names) {
      const auto known = sizes_.find(name);
      if (known == sizes_.end()) {
        fail("the size of `" + name + "` is not known", bound_.rule,
             "give it as a hint, or give the other parts of its dim");
      }
      product *= known->second;
    }
    return product;
  }

  template <typename Visit>
  void for_each_operand_dim(Visit visit) const {
    for (int t : tensors_) {
      if (!is_operand(t)) continue;
      const std::vector<Cell>& cells = cells_[t];
      for (std::size_t d = 0; d < cells.size(); ++d) visit(t, d, cells[d]);
    }
  }

  const RulePatterns& patterns_;
  const Hints& hints_;
  BoundRule& bound_;
  int element_;
  std::vector<int> tensors_;
  std::map<std::string, std::int64_t> lengths_;
  std::map<std::string, std::int64_t> sizes_;
  std::vector<std::vector<Cell>> cells_;  // by tensor
  std::size_t broadcast_rank_ = 0;
};

void check_operands(const RulePatterns& patterns, std::string_view rule,
                    const std::vector<std::vector<Shape>>& operands) {
  const auto expected = static_cast<std::size_t>(patterns.operand_count);
  if (operands.size() != expected) {
    fail(std::to_string(operands.size()) + " operands for a rule of " + std::to_string(expected), rule,
         "give each operand of the rule: an absent optional as an empty list");
  }
  for (std::size_t i = 0; i < expected; ++i) {
    const TensorPattern& p = patterns.tensors[i];
    const bool fits = p.list || operands[i].size() == 1 || (p.optional && operands[i].empty());
    if (fits) continue;
    fail(std::to_string(operands[i].size()) + " tensors for operand " + std::to_string(i) + ", `" +
             to_string(p, patterns) + "`",
         rule, "give one tensor, or mark the operand `?` or `[]`");
  }
}

// The common length of the lists that a rule pairs; an empty list goes with any.
int paired_length(const RulePatterns& patterns, std::string_view rule,
                  const std::vector<std::vector<Shape>>& operands) {
  std::size_t length = 0;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (!patterns.tensors[i].list || operands[i].empty()) continue;
    if (length != 0 && operands[i].size() != length) {
      fail("lists of " + std::to_string(length) + " and " + std::to_string(operands[i].size()) +
               " tensors cannot be paired",
           rule, "give lists of one length");
    }
    length = operands[i].size();
  }
  return static_cast<int>(length);
}

}  // namespace

BoundRule bind(const Rule& rule, const std::vector<std::vector<Shape>>& operands, const Hints& hints) {
  const RulePatterns patterns = rule.patterns();
  check_operands(patterns, rule.text(), operands);
  BoundRule bound;
  bound.rule = rule.text();
  bool list_operand = false;
  bool list_result = false;
  for (int i = 0; i < patterns.tensor_count; ++i) {
    (i < patterns.operand_count ? list_operand : list_result) |= patterns.tensors[i].list;
  }
  bound.paired = list_operand && list_result;
  const int length = bound.paired ? paired_length(patterns, rule.text(), operands) : 1;

  for (int i = 0; i < patterns.operand_count; ++i) {
    const TensorPattern& p = patterns.tensors[i];
    for (std::size_t e = 0; e < operands[i].size(); ++e) {
      bound.tensors.push_back({i, p.list ? static_cast<int>(e) : -1, p.mark, operands[i][e]});
    }
  }
  bound.operand_count = static_cast<int>(bound.tensors.size());
  for (int i = patterns.operand_count; i < patterns.tensor_count; ++i) {
    const TensorPattern& p = patterns.tensors[i];
    for (int e = 0; e < (bound.paired && p.list ? length : 1); ++e) {
      const int element = bound.paired && p.list ? e : -1;
      bound.tensors.push_back({i - patterns.operand_count, element, p.mark, {}});
    }
  }
  for (int e = 0; e < length; ++e) Binder(patterns, hints, bound, e).run();
  return bound;
}

int result_of_tensor(const BoundRule& bound, int index) { return std::min(index, bound.result_count() - 1); }

Shape result_shape(const BoundRule& bound, int result, const Shape& local_result_shape) {
  const BoundTensor& tensor = bound.result(result);
  const std::size_t rank = local_result_shape.size();
  if (rank < tensor.shape.size() || (rank > tensor.shape.size() && tensor.tail == BoundTensor::Tail::none)) {
    fail("result " + std::to_string(result) + " has rank " + std::to_string(rank) + ", not " +
             std::to_string(tensor.shape.size()),
         bound.rule, "correct the rule");
  }
  Shape shape = tensor.shape;
  shape.resize(rank, tensor.tail == BoundTensor::Tail::ones ? 1 : -1);
  for (std::size_t d = 0; d < rank; ++d) {
    if (shape[d] < 0) shape[d] = local_result_shape[d];
  }
  return shape;
}

}  // namespace meshtorch::internal

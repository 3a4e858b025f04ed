// Who holds what: whether a group holds before a move what its members hold after it. No torch.
#pragma once

#include <array>
#include <unordered_map>

#include "redistribute/states.h"

namespace meshtorch::internal {

// Answers for the states of one problem; remembers them.
//
// Each mesh axis splits at most one dim, so the holdings of a group are a product over the dims,
// and each dim is asked by itself. Within a dim only the axes that split it matter, and most
// questions are settled by their order alone.
class Coverage {
 public:
  Coverage(const States& states, SearchStats& stats) : states_(states), stats_(stats) {}

  // True if for every rank what it holds under `after` was held under `before` by the ranks that
  // differ from it only on `group`. An empty group asks the rank itself.
  bool holds(const State& before, const State& after, AxisSet group);

 private:
  // One axis that splits the dim in question.
  struct Split {
    std::size_t axis = 0;
    std::int64_t extent = 0;
    Placement placement;
    bool in_group = false;
  };
  // The axes that split a dim, from left to right. Without allocation, since most moves ask for it.
  struct Splits {
    std::array<Split, kMaxAxes> items;
    std::size_t size = 0;
    const Split* begin() const { return items.data(); }
    const Split* end() const { return items.data() + size; }
  };

  Splits splits(std::int64_t dim, const State& state, AxisSet group) const;
  bool holds_dim(std::int64_t dim, const State& before, const State& after, AxisSet group);
  bool holds_ranges(std::int64_t size, const Splits& before, const Splits& after);
  std::vector<Range> reach(std::int64_t size, const Splits& splits, const Shape& coordinate);
  void add_reach(std::vector<Range>& reached, std::vector<Range> held, const Splits& splits, std::size_t next,
                 const Shape& coordinate);

  const States& states_;
  SearchStats& stats_;
  std::unordered_map<std::string, bool> known_;
};

}  // namespace meshtorch::internal

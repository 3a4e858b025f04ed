// Ranks simulated with plain arrays, on which the steps of a plan run as an executor runs them.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "redistribute/transfer.h"

namespace meshtorch::simulation {

using namespace internal;

// A tensor: row-major values.
struct Array {
  Shape shape;
  std::vector<double> data;

  explicit Array(Shape s, double value = 0) : shape(std::move(s)) {
    const std::int64_t n = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    data.assign(static_cast<std::size_t>(n), value);
  }
  double& at(const Shape& index) {
    std::int64_t position = 0;
    for (std::size_t i = 0; i < shape.size(); ++i) position = position * shape[i] + index[i];
    return data.at(static_cast<std::size_t>(position));
  }
};

// Calls f(index) for each index of `shape`, row-major.
template <class F>
void each_index(const Shape& shape, F f) {
  Shape index(shape.size(), 0);
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return;
  while (true) {
    f(index);
    std::size_t i = shape.size();
    while (i > 0 && ++index[i - 1] == shape[i - 1]) index[--i] = 0;
    if (i == 0) return;
  }
}

inline Shape sizes_of(const std::vector<Range>& box) {
  Shape sizes;
  for (const Range& r : box) sizes.push_back(r.size);
  return sizes;
}

inline Shape shifted(Shape index, const std::vector<Range>& box) {
  for (std::size_t i = 0; i < index.size(); ++i) index[i] += box[i].begin;
  return index;
}

inline double reduce(ReduceOp op, const std::vector<double>& terms) {
  double result = terms.front();
  for (std::size_t i = 1; i < terms.size(); ++i) {
    if (op == ReduceOp::sum || op == ReduceOp::avg) result += terms[i];
    if (op == ReduceOp::product) result *= terms[i];
    if (op == ReduceOp::max) result = std::max(result, terms[i]);
    if (op == ReduceOp::min) result = std::min(result, terms[i]);
  }
  return op == ReduceOp::avg ? result / static_cast<double>(terms.size()) : result;
}

inline std::size_t rank_of(const Shape& mesh, const Shape& coordinate) {
  std::int64_t rank = 0;
  for (std::size_t i = 0; i < mesh.size(); ++i) rank = rank * mesh[i] + coordinate[i];
  return static_cast<std::size_t>(rank);
}

// The local array of every rank, and the global tensor that they mean.
class Simulation {
 public:
  Simulation(Shape shape, Shape mesh) : shape_(std::move(shape)), mesh_(std::move(mesh)), global_(shape_) {}

  // Random terms on the partial axes, nested; the global tensor is what they reduce to.
  void fill(const Placements& placements, std::mt19937& random) {
    std::uniform_int_distribution<int> value(-3, 3);
    std::vector<Array> whole;
    each_index(mesh_, [&](const Shape& c) {
      Shape term = c;
      for (std::size_t a = 0; a < mesh_.size(); ++a) term[a] *= placements[a].is_partial() ? 1 : 0;
      whole.emplace_back(shape_);
      for (double& x : whole.back().data) x = value(random);
      if (term != c) whole.back() = whole[rank_of(mesh_, term)];
      local_.push_back(part(whole.back(), placements, c));
    });
    each_index(shape_, [&](const Shape& i) {
      global_.at(i) =
          meaning(placements, Shape(mesh_.size(), 0), 0, [&](std::size_t r) { return whole[r].at(i); });
    });
  }

  void run(const Step& step) {
    std::vector<Array> result;
    each_index(mesh_, [&](const Shape& receiver) { result.push_back(received(step, receiver)); });
    local_ = std::move(result);
  }

  // True if the local arrays mean the global tensor under `placements`.
  bool is(const Placements& placements) {
    bool good = true;
    each_index(mesh_, [&](const Shape& c) {
      Array expected = part(global_, placements, c);
      if (local_[rank_of(mesh_, c)].shape != expected.shape) good = false;
      if (!good) return;
      each_index(expected.shape, [&](const Shape& i) {
        const double got = meaning(placements, c, 0, [&](std::size_t r) { return local_[r].at(i); });
        if (!(std::abs(got - expected.at(i)) < 1e-9)) good = false;
      });
    });
    return good;
  }

 private:
  // The reduction over the partial axes from `axis` on, the last innermost.
  template <class Term>
  double meaning(const Placements& placements, const Shape& c, std::size_t axis, const Term& term) {
    while (axis < mesh_.size() && !placements[axis].is_partial()) ++axis;
    if (axis == mesh_.size()) return term(rank_of(mesh_, c));
    std::vector<double> terms;
    Shape member = c;
    for (member[axis] = 0; member[axis] < mesh_[axis]; ++member[axis]) {
      terms.push_back(meaning(placements, member, axis + 1, term));
    }
    return reduce(placements[axis].reduce_op(), terms);
  }

  Array part(Array& whole, const Placements& placements, const Shape& c) {
    Array local(local_shape(shape_, placements, mesh_, c));
    std::vector<std::vector<std::int64_t>> held(shape_.size());
    for (std::size_t d = 0; d < shape_.size(); ++d) {
      for (const Range& r : held_ranges(shape_[d], static_cast<std::int64_t>(d), placements, mesh_, c)) {
        for (std::int64_t i = r.begin; i < r.end(); ++i) held[d].push_back(i);
      }
    }
    each_index(local.shape, [&](const Shape& i) {
      Shape from = i;
      for (std::size_t d = 0; d < i.size(); ++d) from[d] = held[d][static_cast<std::size_t>(i[d])];
      local.at(i) = whole.at(from);
    });
    return local;
  }

  Array received(const Step& step, const Shape& receiver) {
    const std::vector<Shape> members = group_members(mesh_, step.axes, receiver);
    const bool reduces = step.kind == Step::Kind::all_reduce || step.kind == Step::Kind::reduce_scatter;
    Array result(local_shape(shape_, step.after, mesh_, receiver));
    Array position = result;
    std::iota(position.data.begin(), position.data.end(), 0.0);
    std::vector<std::vector<double>> terms(result.data.size());
    for (const Shape& sender : members) {
      for (const Piece& piece : pieces(shape_, mesh_, step, sender, receiver)) {
        each_index(sizes_of(piece.source), [&](const Shape& i) {
          const auto target = static_cast<std::size_t>(position.at(shifted(i, piece.target)));
          terms[target].push_back(local_[rank_of(mesh_, sender)].at(shifted(i, piece.source)));
        });
      }
    }
    const bool keeps =
        step.kind != Step::Kind::to_partial || keeps_value(step.op, members.front() == receiver);
    for (std::size_t i = 0; i < terms.size(); ++i) {
      const bool complete = terms[i].size() == (reduces ? members.size() : 1);
      result.data[i] = !complete ? std::numeric_limits<double>::quiet_NaN()
                       : reduces ? reduce(step.op, terms[i]) / static_cast<double>(divisor_of(step, mesh_))
                       : keeps   ? terms[i].front()
                                 : (step.op == ReduceOp::product ? 1 : 0);
    }
    return result;
  }

  Shape shape_, mesh_;
  Array global_;
  std::vector<Array> local_;
};

}  // namespace meshtorch::simulation

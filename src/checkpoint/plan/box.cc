// Boxes of a tensor, and how they meet what a rank holds.
#include "checkpoint/plan/box.h"

#include <algorithm>

namespace meshtorch::checkpoint::internal {

std::int64_t Box::count() const {
  std::int64_t product = 1;
  for (const std::int64_t size : sizes) product *= size;
  return product;
}

std::string Box::to_string() const {
  std::string text;
  for (std::size_t dim = 0; dim < offsets.size(); ++dim) {
    text += (dim > 0 ? ", " : "") + std::to_string(offsets[dim]) + ":" +
            std::to_string(offsets[dim] + sizes[dim]);
  }
  return "[" + text + "]";
}

std::string unfit_chunks(const Shape& shape, const std::vector<Box>& boxes) {
  std::int64_t all = 1;
  for (const std::int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(all, size, &all)) return "has a shape beyond all memory";
  }
  std::int64_t held = 0;
  for (const Box& box : boxes) {
    bool fits = box.offsets.size() == shape.size() && box.sizes.size() == shape.size();
    for (std::size_t dim = 0; fits && dim < shape.size(); ++dim)
      fits = box.offsets[dim] >= 0 && box.sizes[dim] > 0 && box.offsets[dim] <= shape[dim] - box.sizes[dim];
    if (!fits) return "has a chunk outside its shape: " + box.to_string();
    if (__builtin_add_overflow(held, box.count(), &held)) return "has more chunks than elements";
  }
  if (held == all) return {};
  return "has " + std::to_string(all) + " elements, but its chunks have " + std::to_string(held);
}

std::vector<Box> boxes_of(const std::vector<std::vector<Range>>& held) {
  std::vector<Box> boxes(1);
  for (const std::vector<Range>& ranges : held) {
    std::vector<Box> longer;
    for (const Box& box : boxes) {
      for (const Range& range : ranges) {
        Box& added = longer.emplace_back(box);
        added.offsets.push_back(range.begin);
        added.sizes.push_back(range.size);
      }
    }
    boxes = std::move(longer);
  }
  return boxes;
}

Overlap overlap_of(const std::vector<std::vector<Range>>& held, const Box& box) {
  Overlap overlap;
  for (std::size_t dim = 0; dim < held.size(); ++dim) {
    const Range window{box.offsets[dim], box.sizes[dim]};
    Range local;
    std::vector<Range> inside;
    for (std::int64_t position = 0; const Range& range : held[dim]) {
      const std::int64_t begin = std::max(range.begin, window.begin);
      const std::int64_t end = std::min(range.end(), window.end());
      if (begin < end) {
        if (inside.empty()) local.begin = position + begin - range.begin;
        local.size += end - begin;
        inside.push_back({begin - window.begin, end - begin});
      }
      position += range.size;
    }
    overlap.local.offsets.push_back(local.begin);
    overlap.local.sizes.push_back(local.size);
    overlap.inside.push_back(std::move(inside));
  }
  return overlap;
}

}  // namespace meshtorch::checkpoint::internal

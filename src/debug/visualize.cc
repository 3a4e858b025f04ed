// Drawings of how a tensor is split: boxes of ranks in the terminal, as SVG and as HTML.
#include "meshtorch/visualize.h"

#include <algorithm>
#include <map>

#include "core/shard.h"
#include "mesh/mesh_impl.h"
#include "tensor/meta.h"

namespace meshtorch {
using namespace internal;
namespace {

// A block of the tensor, one range of indices for each dim, and the ranks that hold it.
struct Block {
  std::vector<Range> ranges;
  std::vector<std::int64_t> ranks;
};

Shape coordinate_of(std::size_t member, const Shape& mesh) {
  Shape coordinate(mesh.size());
  for (std::size_t axis = mesh.size(); axis-- > 0;) {
    coordinate[axis] = static_cast<std::int64_t>(member) % mesh[axis];
    member /= static_cast<std::size_t>(mesh[axis]);
  }
  return coordinate;
}

// Every run of indices of every dim that a rank holds, combined. Ranks that hold nothing are in none.
void add_blocks(const std::vector<std::vector<Range>>& held, std::int64_t rank,
                std::map<std::vector<std::int64_t>, Block>& blocks) {
  std::vector<std::vector<Range>> products{{}};
  for (const auto& ranges : held) {
    std::vector<std::vector<Range>> longer;
    for (const auto& product : products) {
      for (const Range& range : ranges) {
        longer.push_back(product);
        longer.back().push_back(range);
      }
    }
    products = std::move(longer);
  }
  for (const auto& product : products) {
    std::vector<std::int64_t> key;
    for (const Range& range : product) key.push_back(range.begin);
    Block& block = blocks[key];
    block.ranges = product;
    block.ranks.push_back(rank);
  }
}

std::vector<Block> blocks_of(const DTensor& tensor) {
  const DTensorMeta& meta = distributed(tensor, "visualize_sharding");
  const Shape& mesh = meta.mesh->shape();
  std::map<std::vector<std::int64_t>, Block> blocks;
  for (std::size_t member = 0; member < meta.mesh->ranks().size(); ++member) {
    std::vector<std::vector<Range>> held;
    for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
      held.push_back(
          held_ranges(tensor.size(dim), dim, meta.layout->placements, mesh, coordinate_of(member, mesh)));
    }
    add_blocks(held, meta.mesh->ranks()[member], blocks);
  }
  std::vector<Block> list;
  for (auto& [key, block] : blocks) list.push_back(std::move(block));
  return list;
}

std::string ranks_text(const std::vector<std::int64_t>& ranks) {
  std::string text;
  for (const std::int64_t rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

std::string range_text(const Range& range) {
  return std::to_string(range.begin) + ":" + std::to_string(range.end());
}

std::string headline(const DTensor& tensor) {
  std::string shape;
  for (const std::int64_t size : tensor.sizes()) shape += (shape.empty() ? "" : ", ") + std::to_string(size);
  return "(" + shape + ") " + to_string(tensor.placements()) + " on " + tensor.device_mesh().to_string();
}

// The begins of the ranges of one dim, in order.
std::vector<Range> cuts_of(const std::vector<Block>& blocks, std::size_t dim) {
  std::vector<Range> cuts;
  for (const Block& block : blocks) {
    const Range& range = block.ranges[dim];
    if (std::find(cuts.begin(), cuts.end(), range) == cuts.end()) cuts.push_back(range);
  }
  std::sort(cuts.begin(), cuts.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  return cuts;
}

// A grid of the blocks with a head row and, for two dims, a head column.
std::string grid(const std::vector<Block>& blocks, bool has_rows) {
  const std::size_t column_dim = has_rows ? 1 : 0;
  const std::vector<Range> rows = has_rows ? cuts_of(blocks, 0) : std::vector<Range>{{}};
  const std::vector<Range> columns = cuts_of(blocks, column_dim);
  std::vector<std::vector<std::string>> cells(rows.size() + 1, std::vector<std::string>(columns.size() + 1));
  for (std::size_t c = 0; c < columns.size(); ++c) cells[0][c + 1] = range_text(columns[c]);
  for (std::size_t r = 0; r < rows.size(); ++r) cells[r + 1][0] = has_rows ? range_text(rows[r]) : "";
  for (const Block& block : blocks) {
    const auto r = has_rows ? std::find(rows.begin(), rows.end(), block.ranges[0]) - rows.begin() : 0;
    const auto c = std::find(columns.begin(), columns.end(), block.ranges[column_dim]) - columns.begin();
    cells[static_cast<std::size_t>(r) + 1][static_cast<std::size_t>(c) + 1] =
        "rank " + ranks_text(block.ranks);
  }
  std::vector<std::size_t> widths(columns.size() + 1);
  for (const auto& row : cells) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string line = std::string(widths[0], ' ') + "+";
  for (std::size_t c = 1; c < widths.size(); ++c) line += std::string(widths[c] + 2, '-') + "+";
  std::string text;
  for (std::size_t r = 0; r < cells.size(); ++r) {
    const char* edge = r == 0 ? " " : "|";
    text += cells[r][0] + std::string(widths[0] - cells[r][0].size(), ' ') + edge;
    for (std::size_t c = 1; c < widths.size(); ++c)
      text += " " + cells[r][c] + std::string(widths[c] - cells[r][c].size(), ' ') + " " + edge;
    text.erase(text.find_last_not_of(' ') + 1);
    text += "\n" + line + "\n";
  }
  return text;
}

std::string block_table(const std::vector<Block>& blocks) {
  std::string text;
  for (const Block& block : blocks) {
    std::string ranges;
    for (const Range& range : block.ranges) ranges += (ranges.empty() ? "" : ", ") + range_text(range);
    text += "[" + ranges + "]  rank " + ranks_text(block.ranks) + "\n";
  }
  return text;
}

const char* color_of(std::int64_t rank) {
  constexpr std::array<const char*, 8> kColors{"#8ecae6", "#ffb703", "#90be6d", "#f28482",
                                               "#cdb4db", "#84a59d", "#f6bd60", "#a2d2ff"};
  return kColors[static_cast<std::size_t>(rank) % kColors.size()];
}

// The two dims to draw: the first that are split, else the first.
std::array<std::size_t, 2> drawn_dims(const std::vector<Block>& blocks, std::size_t dims) {
  std::vector<std::size_t> order;
  for (std::size_t dim = 0; dim < dims; ++dim) {
    if (cuts_of(blocks, dim).size() > 1) order.push_back(dim);
  }
  for (std::size_t dim = 0; dim < dims; ++dim) {
    if (std::find(order.begin(), order.end(), dim) == order.end()) order.push_back(dim);
  }
  std::array<std::size_t, 2> drawn{order[0], order[1]};
  std::sort(drawn.begin(), drawn.end());
  return drawn;
}

}  // namespace

std::string visualize_sharding(const DTensor& tensor) {
  const std::vector<Block> blocks = blocks_of(tensor);
  const std::string head = headline(tensor) + "\n";
  if (tensor.numel() == 0 || tensor.dim() == 0) return head + block_table(blocks);
  if (tensor.dim() <= 2) return head + grid(blocks, tensor.dim() == 2);
  return head + block_table(blocks);
}

std::string visualize_sharding_svg(const DTensor& tensor) {
  constexpr double kWidth = 480, kHeight = 320, kMargin = 24;
  const std::vector<Block> blocks = blocks_of(tensor);
  const auto dims = static_cast<std::size_t>(tensor.dim());
  const std::array<std::size_t, 2> drawn =
      dims >= 2 ? drawn_dims(blocks, dims) : std::array<std::size_t, 2>{0, 0};
  std::string body;
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::int64_t>>
      shown;  // ranks at each place of the picture
  for (const Block& block : blocks) {
    const auto extent = [&](std::size_t dim) {
      return static_cast<double>(std::max<std::int64_t>(tensor.size(static_cast<std::int64_t>(dim)), 1));
    };
    const Range row = dims >= 2 ? block.ranges[drawn[0]] : Range{0, 1};
    const Range column = dims == 0 ? Range{0, 1} : block.ranges[dims >= 2 ? drawn[1] : 0];
    const double rows = dims >= 2 ? extent(drawn[0]) : 1,
                 columns = dims == 0 ? 1 : extent(dims >= 2 ? drawn[1] : 0);
    auto& ranks = shown[{row.begin, column.begin}];
    const bool is_first = ranks.empty();
    ranks.insert(ranks.end(), block.ranks.begin(), block.ranks.end());
    if (!is_first) continue;
    const auto number = [](double v) { return std::to_string(v); };
    const double x = kMargin + kWidth * static_cast<double>(column.begin) / columns,
                 y = kMargin + kHeight * static_cast<double>(row.begin) / rows;
    const double w = kWidth * static_cast<double>(column.size) / columns,
                 h = kHeight * static_cast<double>(row.size) / rows;
    body += "  <rect x=\"" + number(x) + "\" y=\"" + number(y) + "\" width=\"" + number(w) + "\" height=\"" +
            number(h) + "\" fill=\"" + color_of(block.ranks[0]) + "\" stroke=\"#333\"/>\n";
    body += "  <text x=\"" + number(x + w / 2) + "\" y=\"" + number(y + h / 2) +
            "\" text-anchor=\"middle\" font-family=\"sans-serif\" font-size=\"13\">rank " +
            ranks_text(block.ranks) + "</text>\n";
  }
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"528\" height=\"368\">\n  <text x=\"24\" y=\"16\" "
         "font-family=\"sans-serif\" font-size=\"12\">" +
         headline(tensor) + "</text>\n" + body + "</svg>\n";
}

std::string visualize_sharding_html(const DTensor& tensor) {
  return "<!DOCTYPE html>\n<html><head><meta charset=\"utf-8\"><title>" + headline(tensor) +
         "</title></head><body>\n" + visualize_sharding_svg(tensor) + "<pre>\n" + visualize_sharding(tensor) +
         "</pre>\n</body></html>\n";
}

}  // namespace meshtorch

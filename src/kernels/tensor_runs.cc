// The runs of bytes of a box of a tensor.
#include "kernels/tensor_runs.h"

namespace meshtorch::internal {

void append_box(RunVector& runs, const at::Tensor& t, std::span<const Range> ranges) {
  struct Dim {
    std::size_t size;
    std::size_t stride;
  };
  const std::size_t item = t.element_size();
  Runs inner{static_cast<char*>(const_cast<void*>(t.const_data_ptr())), item};
  c10::SmallVector<Dim, 8> dims;  // the inner ones last
  for (std::int64_t d = 0; d < t.dim(); ++d) {
    const auto i = static_cast<std::size_t>(d);
    const Range range = i < ranges.size() ? ranges[i] : Range{0, t.size(d)};
    if (range.size == 0) return;
    const std::size_t stride = static_cast<std::size_t>(t.stride(d)) * item;
    inner.data += static_cast<std::size_t>(range.begin) * stride;
    if (range.size > 1) dims.push_back({static_cast<std::size_t>(range.size), stride});
  }
  for (; !dims.empty() && dims.back().stride == inner.run; dims.pop_back()) inner.run *= dims.back().size;
  if (!dims.empty()) {
    inner.count = dims.back().size;
    inner.stride = dims.back().stride;
    dims.pop_back();
  }
  for (; !dims.empty() && dims.back().stride == inner.count * inner.stride; dims.pop_back())
    inner.count *= dims.back().size;
  c10::SmallVector<std::size_t, 8> index(dims.size(), 0);
  for (;;) {
    runs.push_back(inner);
    std::size_t d = dims.size();
    for (; d > 0; --d) {
      inner.data += dims[d - 1].stride;
      if (++index[d - 1] < dims[d - 1].size) break;
      inner.data -= dims[d - 1].size * dims[d - 1].stride;
      index[d - 1] = 0;
    }
    if (d == 0) return;
  }
}

}  // namespace meshtorch::internal

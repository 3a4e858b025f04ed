// A parameter of a group: one tensor object that is a DTensor between steps and whole while its module runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "data_parallel/data_mesh.h"
#include "tensor/meta.h"

namespace meshtorch::internal {

// How a parameter shows itself.
enum class Form : std::uint8_t {
  sharded,  // a DTensor on all axes: what optimisers, checkpoints and users see between steps
  local,    // whole on the data axes, which it is not on: a plain tensor, or one on the tensor-parallel mesh
  distributed,  // a DTensor on all axes, replicated on the data axes: for batches that are distributed
};

class ShardedParameter {
 public:
  // Of a parameter that is plain or on other axes of the same mesh, split along `dim` (nothing: replicated).
  // Checks that this can be; nothing is changed or sent.
  ShardedParameter(std::string name, at::Tensor parameter, const DataMesh& data,
                   std::optional<std::int64_t> dim, std::optional<at::ScalarType> whole_type = std::nullopt);
  // Brings it into its sharded form. `source` is the rank whose values count; none: each rank's own.
  void distribute(const DataMesh& data, std::optional<int> source);

  // Goes on with another tensor object, which is brought into the sharded form; in that form only.
  void replace(const at::Tensor& by);

  const std::string& name() const { return name_; }
  const at::Tensor& tensor() const { return parameter_; }
  // The dim that the data axis splits.
  const std::optional<std::int64_t>& dim() const { return dim_; }
  // The type that it has whole, if that is its own affair.
  const std::optional<at::ScalarType>& whole_type() const { return whole_type_; }
  // What this rank holds whole: of the parameter, or of its part on the other axes.
  const Shape& whole_shape() const { return whole_shape_; }
  const Layout& sharded_layout() const { return *sharded_layout_; }

  // This rank's shard, as it is now; in the sharded form only.
  at::Tensor shard() const;
  // Shows `whole` from now on. Its layout is that of the form.
  void show(Form form, const at::Tensor& whole);
  // Back to the sharded form. What was written into the whole parameter is kept.
  void show_shard();
  // Whether the whole parameter was written to.
  bool was_written() const;

  // One rank's term of a gradient: a plain tensor of the whole shape, and the layout that the parameter's
  // shard of the sum will have. Without a layout, `local` is a DTensor that lies as it has to already.
  struct Term {
    at::Tensor local;
    const Layout* layout;
  };
  Term term_of(const at::Tensor& gradient, Form form) const;

 private:
  const Layout* layout_of(Form form) const;

  std::string name_;
  at::Tensor parameter_;
  std::optional<std::int64_t> dim_;
  std::optional<at::ScalarType> whole_type_;
  std::shared_ptr<MeshImpl> mesh_;        // all axes of the parameter
  std::vector<std::size_t> data_axes_;    // in that mesh
  std::shared_ptr<MeshImpl> other_mesh_;  // null: the parameter was plain
  const Layout* sharded_layout_ = nullptr;
  const Layout* distributed_layout_ = nullptr;
  const Layout* other_layout_ = nullptr;  // null: the parameter was plain
  Shape whole_shape_;
  Range mine_;          // of dim_ of the whole
  at::Tensor sharded_;  // while another form is shown
  at::Tensor whole_;
  std::uint32_t version_ = 0;
};

}  // namespace meshtorch::internal

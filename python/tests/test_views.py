"""Views and what is written in place: bases that get other data or another shape, repeated memory, offsets, out=."""

import pickle

import pytest
import torch
from meshtorch import Replicate, Shard, distribute_tensor
from worlds import on_ranks


def squares(w, rows=4, columns=4):
    whole = torch.arange(float(rows * columns)).view(rows, columns)
    return distribute_tensor(whole, w.mesh(), [Shard(0)])


@on_ranks
def test_views_keep_the_data_that_they_were_taken_of(w):
    x = squares(w)
    row, tail = x[1], x.view(-1)[3:9]
    x.data = row.data  # another shape too: the views stay what they were
    w.same(row.full_tensor(), torch.tensor([4.0, 5, 6, 7]))
    row.mul_(2)
    w.same(x.full_tensor(), torch.tensor([8.0, 10, 12, 14]))
    w.same(tail.full_tensor(), torch.tensor([3.0, 8, 10, 12, 14, 8]))


@on_ranks
def test_views_see_what_is_written_to_a_base_of_another_shape(w):
    x = squares(w)
    row, tail = x[1], x.view(-1)[3:9]
    x.t_()
    x.add_(100)
    w.same(row.full_tensor(), torch.tensor([104.0, 105, 106, 107]))
    w.same(tail.full_tensor(), torch.arange(103.0, 109))
    row.zero_()
    w.same(x.full_tensor(), torch.arange(100.0, 116).view(4, 4).index_fill(0, torch.tensor(1), 0).t())


@on_ranks
def test_a_view_that_gets_another_shape_is_still_one(w):
    x = squares(w)
    rows = x.view(-1)[2:8].view(2, 3)
    rows.t_()
    x.add_(100)
    w.same(rows.full_tensor(), torch.arange(102.0, 108).view(2, 3).t())
    rows.copy_(distribute_tensor(torch.arange(6.0).view(3, 2), w.mesh(), [Shard(1)]))
    w.same(x.full_tensor().view(-1)[2:8], torch.tensor([0.0, 2, 4, 1, 3, 5]))


@on_ranks
def test_an_expanded_view_sees_what_is_written_to_its_base(w):
    x = distribute_tensor(torch.arange(5.0).view(1, 5), w.mesh(), [Shard(0)])
    repeated = x.unsqueeze(1).expand(3, 1, 5)
    x.add_(10)
    w.same(repeated.full_tensor(), torch.arange(10.0, 15).expand(3, 1, 5))


def offsets(w):
    x = squares(w)
    lower = x[2:]
    assert lower.storage_offset() == 8 and lower[:, 1:].storage_offset() == 9
    w.same(lower.as_strided((2, 2), (4, 1)).full_tensor(), torch.tensor([[8.0, 9], [12, 13]]))
    w.same(lower.as_strided((2, 2), (4, 1), 9).full_tensor(), torch.tensor([[9.0, 10], [13, 14]]))
    with pytest.raises(NotImplementedError, match="addresses memory beside the elements"):
        lower.as_strided((2, 4), (4, 1), 0)  # above the view


def test_offsets_are_those_of_plain_tensors(ranks):
    ranks(offsets)


@on_ranks
def test_the_gradient_of_a_strided_view_without_elements_is_distributed(w):
    x = distribute_tensor(torch.ones(3, 0), w.mesh(), [Shard(0)]).requires_grad_()
    (gradient,) = torch.autograd.grad(x.as_strided((3, 0), (1, 1)).sum(), x)
    assert gradient.device_mesh == w.mesh() and gradient.shape == (3, 0)


def out_of_another_shape(w):
    x = squares(w)
    row = x[1]
    torch.abs(squares(w, 2, 3), out=row)
    w.same(row.full_tensor(), torch.arange(6.0).view(2, 3))
    w.same(x.full_tensor(), torch.arange(16.0).view(4, 4))


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_an_out_tensor_of_another_shape_is_no_view_any_more(ranks):
    ranks(out_of_another_shape)


@on_ranks
def test_a_new_shape_in_place_under_views_with_gradients_is_refused(w):
    x = squares(w).requires_grad_() * 2
    upper = x[:2]
    with pytest.raises(NotImplementedError, match="`aten::t_` of a tensor that requires gradients and has views"):
        x.t_()
    del upper
    x.t_()
    assert x.stride() == (1, 4)


@on_ranks
def test_the_diagonal_of_an_empty_leaf_is_not_written(w):
    x = distribute_tensor(torch.ones(0, 4), w.mesh(), [Shard(1)]).requires_grad_()
    with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad"):
        x.fill_diagonal_(2)


@on_ranks
def test_a_view_that_gets_another_shape_in_place_has_the_gradients_of_a_plain_one(w):
    def turned(x):
        view = x[:2]
        view.t_()
        view.mul_(2)
        return view

    def squeezed(x):
        view = x[:1]
        view.squeeze_()
        x.mul_(2)
        return view

    def squeezed_without_gradients(x):
        view = x[:1]
        with torch.no_grad():
            view.squeeze_()
        view.mul_(3)
        return x

    def strided(x):
        view = x[:2]
        view.as_strided_((4,), (1,))
        x.mul_(2)
        return view

    for reshape in (turned, squeezed, squeezed_without_gradients, strided):
        gradients = []
        for placement in (None, Replicate(), Shard(0), Shard(1)):
            leaf = torch.arange(12.0).view(3, 4)
            leaf = (leaf if placement is None else distribute_tensor(leaf, w.mesh(), [placement])).requires_grad_()
            result = reshape(leaf * 1)
            (result * result).sum().backward()
            gradients.append(leaf.grad if placement is None else leaf.grad.full_tensor())
        for gradient in gradients[1:]:
            w.same(gradient, gradients[0])


@on_ranks
def test_views_lie_where_plain_ones_do(w):
    plain = torch.arange(48.0).view(6, 8)
    x = distribute_tensor(plain, w.mesh(), [Shard(0)])
    for take in (lambda t: t.t().select(1, 0), lambda t: t.t().select(1, 2).select(0, 7), lambda t: t[1:, 2], lambda t: t.diagonal()):
        assert (take(x).stride(), take(x).storage_offset()) == (take(plain).stride(), take(plain).storage_offset())


    images = torch.zeros(8, 4, 3, 3)
    for dim in range(4):
        moved = distribute_tensor(images, w.mesh(), [Shard(dim)]).to(memory_format=torch.channels_last)
        assert moved.stride() == images.to(memory_format=torch.channels_last).stride()


@on_ranks
def test_a_view_that_is_a_copy_is_pickled_as_it_is(w):
    x = squares(w)
    row = x[1]
    x.zero_()
    w.same(pickle.loads(pickle.dumps(row)).full_tensor(), torch.zeros(4))

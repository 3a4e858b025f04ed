"""Operators that torch knows otherwise from Python than from C++: shape functions in Python, values read as lists."""

import math

import numpy
import pytest
import torch
from meshtorch import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor
from meshtorch.placement_types import _MaskPartial
from torch import nn
from worlds import on_ranks


def layouts(w, tensor):
    """The tensor in every layout on a mesh of one axis."""
    mesh = w.mesh()
    for placement in (Replicate(), *(Shard(dim) for dim in range(tensor.dim()))):
        yield distribute_tensor(tensor, mesh, [placement])
    share = tensor if w.rank == 0 else torch.zeros_like(tensor)
    yield DTensor.from_local(share, mesh, [Partial()])


@on_ranks
def test_shapes_may_depend_on_data(w):
    if w.kind == "fake":
        return  # there is no data
    x = torch.tensor([[0.0, 2.0, 0.0], [4.0, 0.0, 6.0], [0.0, 0.0, 1.0]])
    for y in (x, x.t().contiguous() + 1, torch.zeros(3, 3)):
        for d in layouts(w, y):
            w.same(torch.nonzero(d).full_tensor(), torch.nonzero(y))
            w.same(torch.argwhere(d).full_tensor(), torch.argwhere(y))
            w.same(d[d > 1].full_tensor(), y[y > 1])
    counts = torch.tensor([2, 0, 3])
    for d in layouts(w, x):
        repeated = torch.repeat_interleave(d, distribute_tensor(counts, w.mesh(), [Shard(0)]), dim=0)
        w.same(repeated.full_tensor(), torch.repeat_interleave(x, counts, dim=0))


@on_ranks
def test_prod_has_its_gradient_also_at_zeros(w):
    for values in ([2.0, 3.0, 5.0], [2.0, 0.0, 5.0], [0.0, 0.0, 5.0]):
        plain = torch.tensor(values, requires_grad=True)
        plain.prod().backward()
        for placement in (Replicate(), Shard(0)):
            x = distribute_tensor(torch.tensor(values), w.mesh(), [placement]).requires_grad_()
            x.prod().backward()
            w.same(x.grad.full_tensor(), plain.grad)


@on_ranks
def test_masked_reductions(w):
    x, mask = torch.arange(12.0).view(4, 3), torch.arange(12).view(4, 3) % 5 != 0
    for d, m in zip(layouts(w, x), layouts(w, mask)):
        m = m if not m.placements[0].is_partial() else distribute_tensor(mask, w.mesh(), [Replicate()])
        for dim in (None, 0, 1):
            options = {} if dim is None else {"dim": dim}
            w.same(torch.masked.mean(d, mask=m, **options).full_tensor(), torch.masked.mean(x, mask=mask, **options))
            w.same(torch.masked.sum(d, mask=m, **options).full_tensor(), torch.masked.sum(x, mask=mask, **options))
        for reduce in (torch.masked.mean, torch.masked.std, torch.masked.var):  # without a mask they count plain ones
            w.same(reduce(d, dim=1).full_tensor(), reduce(x, dim=1))


@on_ranks
def test_attention_with_masks(w):
    """torch's own Python code makes plain tensors in these: a key of zeros, a causal mask to compare with."""
    torch.manual_seed(0)
    attention = torch.nn.MultiheadAttention(8, 4, add_zero_attn=True, batch_first=True)
    layer = torch.nn.TransformerEncoderLayer(8, 4, 16, dropout=0.0, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    x, mask = torch.randn(5, 6, 8), torch.nn.Transformer.generate_square_subsequent_mask(6)
    plain = attention(x, x, x)[0], encoder(x, mask=mask)
    distribute_module(attention, w.mesh())
    distribute_module(encoder, w.mesh())
    d, m = distribute_tensor(x, w.mesh(), [Shard(0)]), distribute_tensor(mask, w.mesh(), [Replicate()])
    w.same(attention(d, d, d)[0].full_tensor(), plain[0])
    w.same(encoder(d, mask=m).full_tensor(), plain[1])


@on_ranks
def test_lists_and_arrays_have_the_global_values(w):
    x = torch.arange(6.0).view(2, 3)
    for d in layouts(w, x):
        if w.kind != "fake":
            assert d.tolist() == x.tolist() and d.sum().tolist() == 15
            assert numpy.array_equal(d.numpy(), x.numpy()) and numpy.array_equal(numpy.asarray(d), x.numpy())
            assert numpy.asarray(d, dtype=numpy.int32).dtype == numpy.int32
        assert d.numpy().shape == (2, 3)
    needs_gradient = distribute_tensor(x, w.mesh(), [Shard(0)]).requires_grad_()
    with pytest.raises(RuntimeError, match="requires grad"):
        needs_gradient.numpy()
    assert needs_gradient.numpy(force=True).shape == (2, 3) and len(needs_gradient.tolist()) == 2


@on_ranks
def test_new_tensor_is_plain_and_trunc_normal_uses_it(w):
    x = distribute_tensor(torch.zeros(8, 5, dtype=torch.float64), w.mesh(), [Shard(0)])
    made = x.new_tensor([1, 2])
    assert not isinstance(made, DTensor) and made.dtype == torch.float64 and made.tolist() == [1, 2]
    assert x.new_tensor(3, dtype=torch.int32, requires_grad=False).dtype == torch.int32
    nn.init.trunc_normal_(x, std=2.0, a=-1.0, b=1.5)
    local = x.to_local()
    assert local.numel() == 0 or (local.min() >= -1 and local.max() <= 1.5)


@on_ranks
def test_a_plain_tensor_of_one_element_is_replicated(w):
    x = torch.arange(6.0).view(2, 3)
    for d in layouts(w, x):
        for number in (torch.tensor(2.0), torch.tensor([2.0]), torch.tensor([[2.0]])):
            w.same((d * number).full_tensor(), x * number)
            w.same((number + d).full_tensor(), number + x)
        with pytest.raises(RuntimeError, match="plain tensor beside distributed ones"):
            d + torch.ones(3)


@on_ranks
def test_a_learning_rate_may_be_a_tensor_of_one_element(w):
    start = torch.linspace(-1, 1, 12).view(4, 3)
    for make in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD):
        results = []
        for data in (start.clone(), distribute_tensor(start, w.mesh(), [Shard(0)])):
            p = nn.Parameter(data)
            optimizer = make([p], lr=torch.tensor([1e-2]))
            for _ in range(2):
                optimizer.zero_grad()
                (p * p).sum().backward()
                optimizer.step()
            results.append(p.detach())
        w.same(results[1].full_tensor(), results[0])


@on_ranks
def test_wrong_arguments_raise_and_leave_nothing_behind(w):
    x = distribute_tensor(torch.ones(4, 3), w.mesh(), [Shard(0)])
    for wrong in (lambda: x @ x, lambda: x.view(5, 5), lambda: x.sum(dim=7), lambda: torch.cat([x, x[:, :2]], 0)):
        with pytest.raises((RuntimeError, ValueError, IndexError)):
            wrong()
    assert math.isclose(x.sum().full_tensor().item(), 12) or w.kind == "fake"


@on_ranks
def test_functions_that_make_plain_tensors(w):
    mesh = w.mesh()
    ids = torch.arange(12).view(4, 3)
    for d in layouts(w, ids):
        if not d.placements[0].is_partial():
            for found, expected in zip(torch.unravel_index(d, (3, 4)), torch.unravel_index(ids, (3, 4))):
                w.same(found.full_tensor(), expected)
    images = torch.arange(2 * 3 * 49.0).view(2, 3, 7, 7)
    samples = torch.tensor([0.1, 0.9, 0.5, 0.3, 0.7, 0.2]).repeat(2).view(2, 3, 2)
    pool = nn.functional.fractional_max_pool2d
    expected = pool(images, 2, output_size=3, _random_samples=samples)
    for d in layouts(w, images):
        s = distribute_tensor(samples, mesh, [Replicate()])
        w.same(pool(d, 2, output_size=3, _random_samples=s).full_tensor(), expected)
        drawn = pool(d, 2, output_size=3)  # all ranks lay their windows alike
        assert drawn.shape == (2, 3, 3, 3)
        w.same(drawn.redistribute(placements=[Replicate()]).to_local(), drawn.full_tensor())
        assert nn.FractionalMaxPool2d(2, output_size=2, return_indices=True)(d)[1].shape == (2, 3, 2, 2)


def comparisons_of_torch_testing(w):
    close = torch.testing.assert_close
    x = torch.arange(12.0).view(4, 3)
    for d in layouts(w, x):
        for pair in ((d, x), (x, d), (d, 1.0)):
            with pytest.raises(TypeError, match="Comparing a DTensor to a non-DTensor is ambiguous"):
                close(*pair)
        if w.kind != "fake":
            close(d, d.clone())
            with pytest.raises(AssertionError, match="Tensor-likes are not close"):
                close(d, d * 2)
    whole, rows, columns = list(layouts(w, x))[:3]
    for pair in ((whole, rows), (rows, columns)):
        with pytest.raises(AssertionError, match="DTensor placements do not match"):
            close(*pair)
    w.same(rows.full_tensor(), columns.full_tensor())
    named = distribute_tensor(x, w.mesh(w.size, 1), [Shard(0), Replicate()])
    other = distribute_tensor(x, w.mesh(1, w.size), [Shard(0), Replicate()])
    with pytest.raises(AssertionError, match="DTensor device meshes do not match"):
        close(named, other)


def test_torch_testing_compares_tensors_that_lie_alike(ranks):
    ranks(comparisons_of_torch_testing)
    torch.testing.assert_close(torch.ones(2), torch.ones(2))
    torch.testing.assert_close(1.0, 1.0)


@on_ranks
def test_masked_rows_are_a_pending_sum(w):
    x, index = torch.arange(40.0).view(8, 5), torch.tensor([[7, 0, 3, 3, 5]])
    picked = torch.gather(
        distribute_tensor(x, w.mesh(), [Shard(0)]), 0, distribute_tensor(index, w.mesh(), [Replicate()])
    )
    assert isinstance(picked.placements[0], _MaskPartial) and picked.placements[0].is_partial("sum")
    w.same(picked.full_tensor(), torch.gather(x, 0, index))


@on_ranks
def test_numbers_are_reduced_along_their_dim_zero(w):
    x = distribute_tensor(torch.tensor(2.5), w.mesh(), [Replicate()])
    for dim in (0, -1):
        for reduce in (torch.var, torch.std, torch.mean, torch.sum):
            w.same(reduce(x, dim=dim).full_tensor(), reduce(torch.tensor(2.5), dim=dim), equal_nan=True)
        for reduce in (torch.var_mean, torch.std_mean):
            for found, expected in zip(reduce(x, dim=dim), reduce(torch.tensor(2.5), dim=dim)):
                w.same(found.full_tensor(), expected, equal_nan=True)
    with pytest.raises(IndexError):
        torch.var(x, dim=1)


@on_ranks
def test_products_of_complex_numbers(w):
    x = torch.complex(torch.linspace(0.5, 1, 15), torch.linspace(-1, 1, 15)).view(5, 3)
    for placement in (Replicate(), Shard(0), Shard(1)):
        d = distribute_tensor(x, w.mesh(), [placement])
        w.same(d.prod().full_tensor(), x.prod())
        w.same(d.prod(0).full_tensor(), x.prod(0))
        w.same(d.real.prod(dtype=torch.complex64).full_tensor(), x.real.prod(dtype=torch.complex64))


@on_ranks
def test_what_is_not_defined_is_refused(w):
    empty = distribute_tensor(torch.ones(0, 4), w.mesh(), [Shard(0)])
    x = distribute_tensor(torch.ones(8, 4), w.mesh(), [Shard(0)])
    for wrong in (lambda: torch.linalg.vector_norm(empty, -1), lambda: empty.norm(float("inf")), lambda: torch.linalg.det(x[0])):
        with pytest.raises(RuntimeError):
            wrong()
    for refused in (
        x.to_sparse,
        x.to_sparse_csr,
        x.to_mkldnn,
        lambda: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
        lambda: x.clone().set_(torch.ones(3).untyped_storage()),
    ):
        with pytest.raises(NotImplementedError, match="meshtorch: .*\n.*\n? *do: "):
            refused()


@on_ranks
def test_new_makes_a_plain_tensor(w):
    x = distribute_tensor(torch.ones(4, 3, dtype=torch.float64), w.mesh(), [Shard(0)])
    assert x.new(2, 3).shape == (2, 3) and x.new().dtype == torch.float64
    assert x.new([1, 2]).tolist() == [1, 2]


@on_ranks
def test_numbers_may_come_from_a_generator_of_the_program(w):
    if w.kind == "fake":
        return  # there is no data
    mesh, draws = w.mesh(), {
        "normal_": lambda x, g: x.clone().normal_(generator=g),
        "bernoulli": lambda x, g: torch.bernoulli(x, generator=g),
        "multinomial": lambda x, g: torch.multinomial(x, 3, generator=g),
        "poisson": lambda x, g: torch.poisson(x, generator=g),
        "kaiming_uniform_": lambda x, g: torch.nn.init.kaiming_uniform_(x.clone(), generator=g),
        "normal": lambda x, g: torch.normal(x, 2.0, generator=g),
    }
    for name, draw in draws.items():
        state, results = torch.get_rng_state(), []
        for placement in (Replicate(), Shard(0), Shard(1)):
            generator = torch.Generator().manual_seed(7)
            x = distribute_tensor(torch.full((20, 6), 0.5), mesh, [placement])
            results.append([draw(x, generator).full_tensor() for _ in range(2)])
        for first, second in results:
            w.same(first, results[0][0])
            w.same(second, results[0][1])
            assert not torch.equal(first, second), name
        assert torch.equal(state, torch.get_rng_state()), name  # no other numbers are taken

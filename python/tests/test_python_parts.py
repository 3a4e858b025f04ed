"""Parts of torch.nn that are written in Python, as programs: on distributed tensors they give what they give on plain ones."""

from functools import partial

import pytest
import torch
from meshtorch import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch import nn
from torch.nn.utils import parametrizations, parametrize, rnn
from worlds import filled

LAYOUTS = {"first": Shard(0), "last": Shard(-1), "pending": Partial(), "whole": Replicate()}


def values(*shape):
    count = torch.Size(shape).numel()
    return torch.sin(torch.arange(count, dtype=torch.double) ** 2 * 0.13 + 0.3).view(shape)


def placed(tensor, w, layout):
    placement = LAYOUTS[layout] if tensor.dim() else Replicate()
    if placement == Shard(-1):
        placement = Shard(tensor.dim() - 1)
    whole = distribute_tensor(tensor.detach(), w.mesh(), [Replicate()])
    return whole.redistribute(placements=[placement]).detach().requires_grad_(tensor.requires_grad)


def placed_module(module, w, layout):
    """The parameters lie on their first dim, or on their last."""
    for part in module.modules():
        for name, p in part._parameters.items():
            if p is not None:
                part._parameters[name] = nn.Parameter(placed(p, w, "last" if layout == "last" else "first"))
        if isinstance(part, nn.RNNBase):
            part._flat_weights = [getattr(part, name) for name in part._flat_weights_names]
    return module


def whole(t):
    return t.full_tensor() if isinstance(t, DTensor) else t


def compare(w, results, expected):
    assert len(results) == len(expected)
    for result, plain in zip(results, expected):
        assert isinstance(result, DTensor)
        w.same(whole(result), plain)


def compare_programs(layout, make, program, *inputs_and_rank):
    """`program(module, *inputs)` gives tensors; they are equal, and so are the gradients of the sum of their squares."""
    *inputs, w = inputs_and_rank
    runs = []
    for is_split in (True, False):
        module = filled(make().double())
        tensors = [t.detach().clone().requires_grad_(t.requires_grad) for t in inputs]
        if is_split:
            module, tensors = placed_module(module, w, layout), [placed(t, w, layout) for t in tensors]
        results = program(module, *tensors)
        if any(t.requires_grad for t in results):
            sum((t * t).sum() for t in results).backward()
        leaves = [*module.parameters(), *(t for t in tensors if t.requires_grad)]
        runs.append([*results, *(t.grad for t in leaves if t.grad is not None)])
    compare(w, *runs)


class Doubled(nn.Module):
    def forward(self, x):
        return x * 2

    def right_inverse(self, x):
        return x / 2


def parametrized(module, x):
    parametrize.register_parametrization(module, "weight", Doubled())
    before = module(x)
    module.weight = module.weight.detach() + 1
    after = module(x)
    parametrize.remove_parametrizations(module, "weight")
    return [before.detach(), after.detach(), module(x)]


def orthogonal(orthogonal_map, module, x):
    """Which of the equal parametrizations it is, is drawn; the weight is not."""
    parametrizations.orthogonal(module, orthogonal_map=orthogonal_map)
    return [module(x).detach(), module.weight.detach()]


def packed(module, x):
    sequence = rnn.pack_padded_sequence(x, [4, 6, 2], batch_first=True, enforce_sorted=False)
    output, state = module(sequence)
    states = state if isinstance(state, tuple) else (state,)
    return [rnn.pad_packed_sequence(output, batch_first=True)[0], *states]


def packed_list(_, x):
    sequence = rnn.pack_sequence([x[0, :5], x[1, :3], x[2, :1]])
    return [sequence.data, rnn.unpack_sequence(sequence)[1]]


def encoded(module, x, padding):
    with torch.no_grad():
        return [module.eval()(x, src_key_padding_mask=padding)]


def linear():
    return nn.Linear(5, 6)


def recurrent(kind):
    return kind(4, 5, 2, bidirectional=True, batch_first=True)


def encoder(norm):
    layer = nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(8) if norm else None)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_parametrization_of_a_distributed_parameter(ranks, layout):
    ranks(partial(compare_programs, layout, linear, parametrized, values(7, 5)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["matrix_exp", "cayley", "householder"])
def test_an_orthogonal_parameter(ranks, name, layout):
    ranks(partial(compare_programs, layout, linear, partial(orthogonal, name), values(7, 5)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_packed_sequences(ranks, kind, layout):
    ranks(partial(compare_programs, layout, partial(recurrent, kind), packed, values(3, 6, 4).requires_grad_()))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_list_of_sequences_is_packed(ranks, layout):
    ranks(partial(compare_programs, layout, nn.Identity, packed_list, values(3, 6, 4).requires_grad_()))


@pytest.mark.parametrize("layout", ["first", "last", "whole"])
@pytest.mark.parametrize("norm", [False, True])
def test_an_encoder_leaves_padding_out(ranks, norm, layout):
    padding = torch.arange(5)[None] >= torch.tensor([5, 3, 4])[:, None]
    ranks(partial(compare_programs, layout, partial(encoder, norm), encoded, values(3, 5, 8), padding))

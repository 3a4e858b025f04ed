"""The first things a user does: import, make a mesh, split a tensor, run an operator."""

import meshtorch
import pytest
import torch
from meshtorch import DTensor, Replicate, Shard, distribute_tensor
from worlds import fake_group, on_ranks


@on_ranks
def test_operators_work_on_split_tensors(w):
    mesh = w.mesh()
    x, y = torch.arange(12.0).view(4, 3), torch.arange(6.0).view(3, 2)
    dx = distribute_tensor(x, mesh, [Shard(0)])
    dy = distribute_tensor(y, mesh, [Replicate()])
    product = torch.relu(torch.mm(dx, dy))
    assert isinstance(product, DTensor) and not isinstance(y, DTensor)
    assert product.placements == (Shard(0),)
    assert product.device_mesh == mesh
    assert product.shape == (4, 2) and product.to_local().shape == (1, 2)
    w.same(product.full_tensor(), x @ y)


def test_plain_tensors_do_not_show_the_attributes_of_distributed_ones():
    plain = torch.ones(2)
    for name in ("placements", "device_mesh", "to_local", "full_tensor", "redistribute", "_spec", "_local_tensor"):
        assert not hasattr(plain, name)
    with pytest.raises(AttributeError, match="'Tensor' object has no attribute 'placements'"):
        plain.placements


def test_a_dtensor_is_not_constructed():
    with pytest.raises(TypeError, match="do: use DTensor.from_local"):
        DTensor(torch.ones(2))


def test_the_version_is_that_of_the_library():
    assert meshtorch.__version__ == "0.1.0"


@on_ranks
def test_a_rank_knows_its_number_in_every_world(w):
    assert meshtorch.is_initialized()
    assert (meshtorch.get_rank(), meshtorch.get_world_size()) == (w.rank, w.size)
    assert meshtorch.get_backend() == w.kind
    assert meshtorch.get_local_rank() == w.rank


def test_the_number_of_a_rank_is_that_of_the_world_that_is_there():
    assert not meshtorch.is_initialized()
    with fake_group(3, rank=2):
        assert (meshtorch.get_rank(), meshtorch.get_world_size()) == (2, 3)
        meshtorch.spawn(2, lambda rank: assert_equal(meshtorch.get_rank(), rank), timeout=30)
        assert meshtorch.get_rank() == 2
    assert not meshtorch.is_initialized()
    with pytest.raises(RuntimeError, match="do: call init_process_group"):
        meshtorch.get_rank()


def assert_equal(actual, expected):
    assert actual == expected

"""torch.distributed on meshtorch's backend for processes of one host."""

import meshtorch
import torch
import torch.distributed as dist
from processes import Processes


def _collectives_of_torch():
    rank, size = dist.get_rank(), dist.get_world_size()
    assert dist.get_backend() == "shm"
    for count in (3, 1_000_000):
        x = torch.full((count,), float(rank + 1))
        dist.all_reduce(x)
        assert torch.equal(x, torch.full((count,), size * (size + 1) / 2))
        parts = [torch.empty(count) for _ in range(size)]
        dist.all_gather(parts, torch.full((count,), float(rank)))
        assert all(torch.equal(part, torch.full((count,), float(r))) for r, part in enumerate(parts))
        y = torch.full((count,), float(rank))
        dist.broadcast(y, src=1)
        assert torch.equal(y, torch.ones(count))
    group = dist.new_group([0, 1])
    if rank < 2:
        z = torch.ones(2)
        dist.all_reduce(z, group=group)
        assert torch.equal(z, torch.full((2,), 2.0))
    dist.barrier()


def _distributed_tensors():
    mesh = meshtorch.init_device_mesh("cpu", (dist.get_world_size(),))
    x = torch.arange(10.0).view(5, 2)
    whole = meshtorch.distribute_tensor(x, mesh, [meshtorch.Shard(0)])
    assert torch.equal((whole + 1).full_tensor(), x + 1)


def _disagree():
    rank = dist.get_rank()
    try:
        dist.all_reduce(torch.ones(5 if rank == 1 else 4))
    except RuntimeError as error:
        assert "rank 1: all_reduce(Float[5], sum)" in str(error), str(error)
        return True
    return False


def test_torch_distributed_runs_on_shared_memory():
    ranks = Processes(3, "shm")
    try:
        ranks.run(_collectives_of_torch)
        ranks.run(_distributed_tensors)
        assert ranks.run(_disagree) == [True] * 3
        ranks.run(_collectives_of_torch)
    finally:
        if ranks.is_alive:
            ranks.stop()

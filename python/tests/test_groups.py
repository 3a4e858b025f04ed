"""Groups of torch.distributed and meshes of meshtorch beside each other, on ranks with different pasts."""

import threading

import meshtorch
import torch
import torch.distributed as dist
from meshtorch import DeviceMesh, Shard, distribute_tensor, init_device_mesh
from worlds import on_gloo_ranks


def sum_over(mesh, axis):
    return meshtorch.functional_collectives.all_reduce(torch.ones(1), "sum", (mesh, axis)).item()


@on_gloo_ranks
def test_ranks_need_not_have_joined_equally_many_groups(w):
    dist.new_group([0, 3])
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    assert sum_over(mesh, 0) == sum_over(mesh, 1) == 2
    x = distribute_tensor(torch.arange(8.0), mesh, [Shard(0), Shard(0)])
    assert x.full_tensor().tolist() == list(range(8))


@on_gloo_ranks
def test_meshes_of_different_ranks_follow_each_other(w):
    for ranks in ([0, 3], [0, 1, 3], [1, 2], [2, 1, 0]):
        mesh = DeviceMesh("cpu", ranks)
        if w.rank in ranks:
            assert sum_over(mesh, 0) == len(ranks)
            assert dist.get_process_group_ranks(mesh.get_group()) == ranks
    assert sum_over(init_device_mesh("cpu", (2, 2)), 1) == 2


@on_gloo_ranks
def test_a_world_can_be_left_and_joined_again(w):
    for _ in range(2):
        mesh = init_device_mesh("cpu", (2, 2))
        assert sum_over(mesh, 0) == 2
        meshtorch._world.leave()


@on_gloo_ranks
def test_two_threads_of_a_rank_may_make_groups(w):
    mesh = w.mesh(2, 2, names=("rows", "columns"))
    waits = threading.Thread(target=mesh.get_group, args=("rows",))
    if w.rank == 0:
        waits.start()  # for rank 2, which comes later
    assert sum_over(mesh, "columns") == 2
    if w.rank == 0:
        waits.join()
    else:
        mesh.get_group("rows")
    assert sum_over(mesh, "rows") == 2

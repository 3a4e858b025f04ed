# The first program of docs/porting.md: what stands between the marks is shown there; test_pages.py runs it.
# [a_ported_program]
import torch
import torch.distributed as dist
from meshtorch import Shard, distribute_tensor, init_device_mesh

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
x = distribute_tensor(torch.arange(20.0).view(5, 4), mesh, [Shard(0), Shard(1)])
y = torch.relu(x @ x.t() - 100)
print(y.placements, y.full_tensor())
# [a_ported_program]
dist.destroy_process_group()

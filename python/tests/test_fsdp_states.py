"""State dicts of sharded modules: shards at any time, and parameters that load_state_dict puts in the place of others."""

import torch
from fsdp_models import Net, new_net, ones, pair, same_gradients
from meshtorch import DTensor, Shard, distribute_tensor
from meshtorch.fsdp import fully_shard
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from worlds import filled, on_gloo_ranks, on_ranks


def all_are_shards(state):
    return bool(state) and all(isinstance(value, DTensor) for value in state.values())


@on_ranks(size=2)
def test_a_state_dict_has_shards_while_parameters_are_whole(w):
    plain = new_net().state_dict()
    for options in ({"reshard_after_forward": False}, {"reshard_after_forward": True}, {}):
        net, _ = pair(w, **options)
        net(ones())
        assert all_are_shards(net.state_dict())
        net(ones())
        assert all_are_shards(net.blocks[0].up.state_dict())
        net.unshard()
        for name, value in get_model_state_dict(net).items() if w.kind != "threads" else ():
            assert isinstance(value, DTensor)
            w.same(value.full_tensor(), plain[name])


@on_ranks(size=2)
def test_backward_goes_on_after_a_state_dict_was_taken(w):
    net, plain = pair(w, reshard_after_forward=False)
    for model in (net, plain):
        loss = model(ones()).square().sum()
        model.state_dict()
        loss.backward()
    same_gradients(w, net, plain)


@on_ranks(size=2)
def test_a_state_is_loaded_into_shards_while_parameters_are_whole(w):
    net, plain = pair(w, reshard_after_forward=False)
    state = {name: value.detach().clone() for name, value in net.state_dict().items()}
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
    net(ones())
    net.load_state_dict(state)
    for (name, p), q in zip(net.named_parameters(), plain.parameters()):
        assert isinstance(p, DTensor), name
        w.same(p.full_tensor(), q)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 6, dtype=torch.float64)
        self.block = Net().double()
        self.head = nn.Linear(6, 5, bias=False, dtype=torch.float64)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.block(self.embedding(tokens)))


def sharded_tied(w):
    with torch.device("meta"):
        net = Tied()
    fully_shard(net.block, mesh=w.mesh(names=("dp",)))
    return fully_shard(net, mesh=w.mesh(names=("dp",)))


@on_ranks(size=2)
def test_tied_weights_that_a_state_dict_assigns_stay_tied(w):
    tokens = torch.tensor([[0, 1, 4], [2, 2, 3]])
    whole = filled(Tied()).state_dict()
    for missing in ((), ("head.weight",), ("embedding.weight",)):
        plain, net = filled(Tied()), sharded_tied(w)
        state = {
            name: distribute_tensor(value, w.mesh(names=("dp",)), [Shard(0)])
            for name, value in whole.items()
            if name not in missing
        }
        net.load_state_dict(state, assign=True, strict=not missing)
        for model in (net, plain):
            model(tokens).square().mean().backward()
        assert net.head.weight is net.embedding.weight
        same_gradients(w, net, plain)


@on_gloo_ranks(size=2)
def test_types_change_also_where_torch_would_swap_parameters(w):
    net, _ = pair(w)
    before = [id(p) for p in net.parameters()]
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        net.float()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert [id(p) for p in net.parameters()] == before
    assert {p.dtype for p in net.parameters()} == {torch.float32}
    net(ones().float()).sum().backward()
    assert {p.grad.dtype for p in net.parameters()} == {torch.float32}


@on_gloo_ranks(size=2)
def test_replicate_of_torch_is_its_own_without_a_mesh(w):
    from meshtorch._replicate import replicate
    from torch.distributed._composable.replicate import DDP

    plain = replicate(nn.Linear(4, 4))
    assert isinstance(plain, DDP) and not isinstance(plain.weight, DTensor)
    ours = replicate(nn.Linear(4, 4), device_mesh=w.mesh(), bucket_cap_mb=1, gradient_as_bucket_view=True)
    assert isinstance(ours.weight, DTensor)

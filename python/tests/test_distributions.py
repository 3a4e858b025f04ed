"""torch.distributions of distributed parameters: densities are those of plain ones, draws do not depend on the layout."""

from functools import partial

import meshtorch
import pytest
import torch
import torch.distributions as D
from meshtorch import DTensor, Partial, Replicate, Shard, distribute_tensor
from worlds import on_ranks

# On a fake group nothing is summed: values do not hold what distributions ask of them.
pytestmark = pytest.mark.parametrize("ranks", ["gloo", "threads"], indirect=True)
LAYOUTS = [Shard(0), Shard(1), Partial(), Replicate()]


def normal(loc, scale):
    return D.Normal(loc, scale)


def cauchy(loc, scale):
    return D.Cauchy(loc, scale)


def laplace(loc, scale):
    return D.Laplace(loc, scale)


def uniform(loc, scale):
    return D.Uniform(loc - 3, scale + 3)


def half_normal(loc, scale):
    return D.HalfNormal(scale)


def student(loc, scale):
    return D.StudentT(scale + 2, loc, scale)


def relaxed(loc, scale):
    return D.RelaxedOneHotCategorical(scale[0, 0], logits=loc)


def of_matrices(loc, scale):
    matrix = loc.mT @ loc + torch.diag_embed(scale[0])
    return D.MultivariateNormal(loc, precision_matrix=matrix)


def counted(loc, scale):
    return D.Multinomial(6, logits=loc)


KINDS = [normal, cauchy, laplace, uniform, half_normal, student, relaxed, of_matrices, counted]


def parameters():
    loc = torch.sin(torch.arange(15.0, dtype=torch.double)).view(5, 3)
    return loc, loc.abs() + 0.5


def placed(tensor, w, placement):
    if not placement.is_partial():
        return distribute_tensor(tensor, w.mesh(), [placement])
    return DTensor.from_local(tensor if w.rank == 0 else torch.zeros_like(tensor), w.mesh(), [placement])


def draws_and_densities(kind, w):
    plain = kind(*parameters())
    draws = []
    for placement in LAYOUTS:
        distribution = kind(*(placed(t, w, placement).requires_grad_() for t in parameters()))
        meshtorch.manual_seed(5)
        draw = distribution.rsample if distribution.has_rsample else distribution.sample
        first, second = draw((2,)), draw((2,))
        assert isinstance(first, DTensor) and first.requires_grad == distribution.has_rsample
        values = [t.detach().full_tensor() for t in (first, second)]
        assert not torch.equal(*values)
        draws.append(values[0])
        w.same(values[0], draws[0])
        density = distribution.log_prob(first.detach()).full_tensor()
        w.same(density, plain.log_prob(values[0]))
        expanded = [d.expand((4, *plain.batch_shape)) for d in (distribution, plain)]
        w.same(expanded[0].log_prob(first.detach()[0]).full_tensor(), expanded[1].log_prob(values[0][0]))


@pytest.mark.parametrize("kind", KINDS)
def test_draws_do_not_depend_on_the_layout(ranks, kind):
    ranks(partial(draws_and_densities, kind))


@on_ranks
def test_gradients_go_through_a_draw(w):
    for placement in LAYOUTS:
        loc, scale = (placed(t, w, placement).requires_grad_() for t in parameters())
        sample = D.Normal(loc, scale).rsample()
        sample.sum().backward()
        w.same(loc.grad.full_tensor(), torch.ones(5, 3, dtype=torch.double))
        noise = (sample.detach() - loc.detach()) / scale.detach()
        w.same(scale.grad.full_tensor(), noise.full_tensor())

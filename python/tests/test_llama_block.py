"""One plan file trains a Llama-style block from Python and from C++, with the losses of one device."""

import os
import subprocess
from pathlib import Path

import llama_block
import pytest
from meshtorch.parallel import load_plan, parallelize_module, plan_from_json, plan_to_json

PLAN = Path(__file__).with_name("llama_plan.json")
STEPS = 6


def train_parallel(w):
    return llama_block.train(STEPS, lambda block: parallelize_module(block, w.mesh(names=("tp",)), load_plan(PLAN)))


def losses_of_cpp(ranks):
    program = os.environ["MESHTORCH_LLAMA_BLOCK"]
    output = subprocess.run(
        [program, str(PLAN), str(ranks), str(STEPS)], check=True, capture_output=True, text=True, timeout=60
    )
    return [float(line) for line in output.stdout.split()]


def test_the_losses_are_those_of_one_device_and_of_cpp(gloo_ranks):
    alone = llama_block.train(STEPS)
    assert alone[-1] < 0.9 * alone[0]
    for losses in gloo_ranks(train_parallel):
        assert losses == pytest.approx(alone, rel=1e-12)
    assert losses_of_cpp(ranks=4) == pytest.approx(alone, rel=1e-12)


def test_a_plan_survives_json():
    text = plan_to_json(load_plan(PLAN))
    assert plan_to_json(plan_from_json(text)) == text
    assert repr(load_plan(PLAN)["attention.wo"]) == "RowwiseParallel(output_layouts=Shard(dim=1), use_local_output=False)"

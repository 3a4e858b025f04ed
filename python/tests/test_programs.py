"""Drawn programs give what they give on plain tensors. MESHTORCH_PROGRAMS=1000:5000 runs these seeds."""

import os

import meshtorch
import pytest
from programs import Program

FIRST, LAST = (int(n) for n in os.environ.get("MESHTORCH_PROGRAMS", "0:150").split(":"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shape", [(3,), (4,), (2, 2)], ids=str)
def test_drawn_programs_give_what_they_give_plain(shape):
    programs = {seed: Program(seed, len(shape)) for seed in range(FIRST, LAST)}
    complaints = {}

    def body(rank):
        mesh = meshtorch.init_device_mesh("cpu", shape)
        for seed, program in programs.items():
            complaint = program.complaint(mesh, looks_each_time=seed % 2 == 0)
            if complaint and rank == 0:
                complaints[seed] = "\n".join([f"seed {seed}", *program.lines, f"-> {complaint}"])

    meshtorch.spawn(shape[0] * (shape[1] if len(shape) > 1 else 1), body, timeout=60)
    assert not complaints, "\n\n".join(complaints.values())

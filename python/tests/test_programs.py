"""Drawn programs give what they give on plain tensors. MESHTORCH_PROGRAMS=1000:5000 runs these seeds."""

import os
import threading

import meshtorch
import pytest
from programs import Program

FIRST, LAST = (int(n) for n in os.environ.get("MESHTORCH_PROGRAMS", "0:150").split(":"))


def written_in_a_thread_of_its_own(seed, axes):
    """The plain run: on a thread with distributed tensors, autograd takes views of all tensors anew by their operators."""
    programs = []
    thread = threading.Thread(target=lambda: programs.append(Program(seed, axes)))
    thread.start()
    thread.join()
    return programs[0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shape", [(3,), (4,), (2, 2)], ids=str)
def test_drawn_programs_give_what_they_give_plain(shape):
    programs = {seed: written_in_a_thread_of_its_own(seed, len(shape)) for seed in range(FIRST, LAST)}
    complaints = {}

    def body(rank):
        mesh = meshtorch.init_device_mesh("cpu", shape)
        for seed, program in programs.items():
            complaint = program.complaint(mesh, looks_each_time=seed % 2 == 0)
            if complaint and rank == 0:
                complaints[seed] = "\n".join([f"seed {seed}", *program.lines, f"-> {complaint}"])

    meshtorch.spawn(shape[0] * (shape[1] if len(shape) > 1 else 1), body, timeout=60)
    assert not complaints, "\n\n".join(complaints.values())

#!/usr/bin/env python3
"""Faults in Llama training on 4 processes, one run after another.

Each seed draws a rank, a collective and an act (throw, exit, kill, stop). Every other rank must name that rank, the run must
go on by itself to the losses of an undisturbed one, and nothing may be left: processes, shared memory, files. What is
not so is printed with its seed, and makes the exit code 1."""
import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile

ranks, steps, limit = 4, 6, 5
here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("runs", nargs="?", type=int, default=200)
parser.add_argument("build", nargs="?", type=os.path.abspath, default=os.path.join(here, "build/release"))
parser.add_argument("first_seed", nargs="?", type=int, default=1)
given = parser.parse_args()
runs, build, first = given.runs, given.build, given.first_seed


def train(place, fault, restarts):
    """Runs a training in a folder of its own; what it says, its exit code, and the losses of its log."""
    log, state = os.path.join(place, "log.jsonl"), os.path.join(place, "state")
    program = [f"{build}/examples/llama/meshtorch-llama", "train", "--data", f"{here}/examples/llama/data/alice.txt",
               "--hidden-size", "16", "--intermediate-size", "21", "--layers", "2", "--heads", "8", "--kv-heads", "4",
               "--sequence-length", "13", "--vocab-size", "257", "--batch-size", "4", "--dtype", "float64", "--dp", "2",
               "--tp", "2", "--steps", str(steps), "--checkpoint-every", "1", "--resume", "auto", "--checkpoint", state,
               "--log", log]
    # A rank that failed waits before it ends: the launcher would end the others before they can say what they know. One that
    # leaves by an error waits for its background save first, for the time limit at the longest.
    patient = ["sh", "-c", f'"$@"; code=$?; [ $code = 0 ] || sleep {limit + 2}; exit $code', "rank"]
    environment = dict(os.environ, OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive", MESHTORCH_TIMEOUT=str(limit),
                       MESHTORCH_FAULT=fault, TMPDIR=place)
    ended = subprocess.run([f"{build}/tools/meshtorch-run", "-n", str(ranks), "--timeout", "120", "--max-restarts",
                            str(restarts)] + patient + program, env=environment, capture_output=True, text=True,
                           timeout=300)
    losses = {}
    if os.path.exists(log):
        for line in open(log):
            record = json.loads(line)
            if "loss" in record:
                losses[record["step"]] = record["loss"]
    return ended.stdout + ended.stderr, ended.returncode, losses


def problems_of(place, fault, said, code, losses, expected):
    rank = int(re.search(r"rank=(\d+)", fault)[1])
    was_hit = "starting all ranks again" in said
    before = said.split("starting all ranks again")[0]
    problems = [] if code == 0 else [f"exit code {code}"]
    for survivor in set(range(ranks)) - {rank} if was_hit else []:
        words = "\n".join(line for line in before.splitlines() if line.startswith(f"[rank {survivor}]"))
        if not re.search(rf"rank {rank}( failed| has|: has|: is in [^;]*behind|: has called nothing)", words):
            problems.append(f"rank {survivor} does not name rank {rank}: {words[-600:]!r}")
    if losses.keys() != expected.keys() or any(abs(losses[s] - expected[s]) > 1e-9 for s in expected):
        problems.append(f"losses {losses} instead of {expected}")
    left = subprocess.run(["pgrep", "-af", place], capture_output=True, text=True).stdout
    if left:
        problems.append(f"processes are left: {left}")
    drafts = [name for _, _, names in os.walk(place) for name in names if name.endswith((".tmp", ".draft"))]
    if drafts:
        problems.append(f"files are left: {drafts}")
    return was_hit, problems


def shared_memory():
    return {name for name in os.listdir("/dev/shm") if "meshtorch" in name}


def main():
    shared = shared_memory()
    with tempfile.TemporaryDirectory(prefix="meshtorch_soak_") as place:
        said, code, expected = train(place, "", 0)
        if code != 0 or len(expected) != steps:
            sys.exit(f"the undisturbed run failed: {said}")
    failed = hits = 0
    for seed in range(first, first + runs):
        draw = random.Random(seed)
        fault = f"rank={draw.randrange(ranks)} call={draw.randrange(1, 200)} act={draw.choice(['throw', 'exit', 'kill', 'stop'])}"
        place = tempfile.mkdtemp(prefix="meshtorch_soak_")
        try:
            said, code, losses = train(place, fault, 1)
            was_hit, problems = problems_of(place, fault, said, code, losses, expected)
        except subprocess.TimeoutExpired:
            was_hit, problems = True, ["hangs"]
        shutil.rmtree(place, ignore_errors=True)
        if shared_memory() - shared:
            problems.append(f"shared memory is left: {shared_memory() - shared}")
        hits += was_hit
        failed += bool(problems)
        print(f"seed {seed}: {fault}: " + ("; ".join(problems) or ("right" if was_hit else "right, not reached")), flush=True)
    print(f"{runs} runs, {hits} with a fault, {failed} not right")
    sys.exit(failed > 0)


main()

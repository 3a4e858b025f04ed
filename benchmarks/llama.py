"""Llama as a whole, from outside: training on two ranks over one rank with two operator threads, and tokens of `generate` over what memory allows.

`llama.py BUILD TEXT [RESULTS.json]`. Training: hidden 512, 6 layers, 8 rows of 128 tokens, the least time of a step of each of three rounds in
turns, and the part of it in which a rank communicates or waits for another. Generation: 115M parameters in float32, the best of three rounds in
turns; the bound is the bandwidth of a copy (read and written bytes) over the bytes of the weights, which each token reads once. What LibTorch's
products of one row with these weights reach by themselves, and what a sum reads, is measured beside it.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROUNDS = 3
MODEL = "--vocab-size 256 --hidden-size 512 --intermediate-size 1408 --layers 6 --heads 8 --kv-heads 8".split()
STEP = "--steps 8 --batch-size 8 --sequence-length 128".split()
# name, options, operator threads of each rank
TRAININGS = [
    ("1 rank, 2 operator threads", ["--dp", "1", "--tp", "1"], 2),
    ("dp 2", ["--dp", "2", "--tp", "1"], 1),
    ("dp-shard 2", ["--dp-shard", "2", "--tp", "1"], 1),
    ("tp 2", ["--dp", "1", "--tp", "2"], 1),
]
GENERATING = [("tp 1, 2 operator threads", ["--tp", "1"], 2), ("tp 2", ["--tp", "2"], 1)]
LARGE = "--vocab-size 32000 --hidden-size 768 --intermediate-size 2048 --layers 10 --heads 12 --kv-heads 12".split()
NEW_TOKENS = 48


def run(program, arguments, threads):
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
    return subprocess.run([program, *arguments], env=environment, check=True, capture_output=True, text=True)


def seconds_of_step(program, text, options, threads, folder):
    log = pathlib.Path(folder) / "log.jsonl"
    log.unlink(missing_ok=True)
    run(program, ["train", "--data", text, *MODEL, *STEP, *options, "--log", str(log)], threads)
    lines = [json.loads(line) for line in log.read_text().splitlines()[1:]]
    return min((line["seconds"], line["communication_share"]) for line in lines)


def training(program, text, folder):
    least = {name: (float("inf"), 0.0) for name, *_ in TRAININGS}
    for _ in range(ROUNDS):
        for name, options, threads in TRAININGS:
            least[name] = min(least[name], seconds_of_step(program, text, options, threads, folder))
    return least


def bandwidth():
    """Bytes a second that two copies at a time read and write together."""
    code = """
import sys, time, torch
torch.set_num_threads(2)
a, b = torch.ones(64 << 20), torch.ones(64 << 20)
least = min(((lambda t: (b.copy_(a), time.perf_counter() - t)[1])(time.perf_counter())) for _ in range(10))
print(2 * a.nbytes / least)
"""
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


PRODUCTS = """
import time, torch
torch.set_num_threads(1)
layers = 10 * [(768, 384), (768, 384), (768, 384), (384, 768), (768, 1024), (768, 1024), (1024, 768)]
# As `generate` stores them: the longer side of a shard lies together.
weights = [torch.randn(i, o) if o >= i else torch.randn(o, i).t() for i, o in [*layers, (768, 16000)]]
rows = [torch.randn(1, w.size(0)) for w in weights]
def least(work):
    times = []
    for _ in range(15):
        begin = time.perf_counter()
        for w, x in zip(weights, rows): work(w, x)
        times.append(time.perf_counter() - begin)
    return min(times)
with torch.no_grad():
    print(least(lambda w, x: x.mm(w)), least(lambda w, x: w.sum()))
"""


def products():
    """Seconds that the products of one token take on each of two ranks at a time, and that a sum of the same weights takes."""
    ranks = [subprocess.Popen([sys.executable, "-c", PRODUCTS], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    times = [list(map(float, rank.communicate()[0].split())) for rank in ranks]
    return max(t[0] for t in times), max(t[1] for t in times)


def generating(program, text, folder):
    model = str(pathlib.Path(folder) / "model")
    run(program, ["train", "--data", text, *LARGE, "--steps", "1", "--batch-size", "1", "--sequence-length", "8", "--export", model], 2)
    weights = sum(file.stat().st_size for file in pathlib.Path(model).glob("*.safetensors"))
    embedding = 32000 * 768 * 4  # of which a token reads one row
    best = {name: 0.0 for name, *_ in GENERATING}
    for _ in range(ROUNDS):
        for name, options, threads in GENERATING:
            ids = ["generate", "--model", model, "--ids", "1,2,3,4", "--greedy", "--max-new-tokens", str(NEW_TOKENS), *options]
            said = run(program, ids, threads).stderr
            best[name] = max(best[name], float(re.search(r"([\d.e+]+) tokens/s", said)[1]))
    return best, weights - embedding


def main():
    build, text = sys.argv[1:3]
    program = str(pathlib.Path(build) / "examples/llama/meshtorch-llama")
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        measured = training(program, text, folder)
        tokens, weights = generating(program, text, folder)
    steps = {name: seconds for name, (seconds, _) in measured.items()}
    shares = {name: share for name, (_, share) in measured.items()}
    one = steps[TRAININGS[0][0]]
    bound = bandwidth() / weights
    product, read = products()
    for name, seconds in steps.items():
        print(f"training, {name}: {seconds * 1e3:.0f} ms a step, {one / seconds:.2f} of one rank's speed, {shares[name]:.0%} in communication")
    for name, speed in tokens.items():
        print(f"generate, {name}: {speed:.1f} tokens/s, {speed / bound:.0%} of the {bound:.1f} that memory allows")
    print(f"the products of one token alone, tp 2: {1 / product:.1f} tokens/s; a sum of the same weights: {1 / read:.1f}")
    print(f"({time.perf_counter() - begin:.0f} s)")
    if len(sys.argv) > 3:
        result = {"training_seconds": steps, "communication_shares": shares, "tokens_per_second": tokens, "bytes_per_token": weights,
                  "bound": bound, "products_tokens_per_second": 1 / product, "read_tokens_per_second": 1 / read}
        pathlib.Path(sys.argv[3]).write_text(json.dumps(result, indent=1) + "\n")


main()

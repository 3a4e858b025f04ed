"""Makes docs/benchmarks.md and docs/benchmarks.svg of the results of `make bench`."""

import json
import pathlib
import platform
import sys

TARGETS = {  # of the ratios: (what the name begins with, the most that is wanted)
    "small tensor-parallel step": 1.25,
    "AdamW on 300 small parameters": 1.3,
}
REDISTRIBUTION = 1.1


def target_of(name):
    return next((limit for start, limit in TARGETS.items() if name.startswith(start)), REDISTRIBUTION)


def least_times(results):
    """The least time in microseconds of each benchmark, of its repetitions."""
    least = {}
    for run in results["benchmarks"]:
        if run.get("run_type") == "aggregate":
            continue
        name = run["name"].split("/repeats")[0].removesuffix("/real_time")
        factor = {"ns": 1e-3, "us": 1, "ms": 1e3}[run["time_unit"]]
        least[name] = min(least.get(name, float("inf")), run["real_time"] * factor)
    return least


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def ratios_table(threads, shm):
    rows = []
    for row, other in zip(threads["rows"], shm["rows"]):
        limit = target_of(row["name"])
        mark = lambda ratio: f"{ratio:.2f}" + ("" if ratio <= limit else " (over)")
        rows.append([row["name"], row["over"], f"{row['us']:.0f}", mark(row["ratio"]), f"{other['us']:.0f}",
                     mark(other["ratio"]), f"{limit}"])
    return table(["what", "over", "threads, us", "ratio", "shm, us", "ratio", "wanted"], rows)


# What one of two ranks must read and write, in bytes of its own 16 MiB: in copies, which read and write one.
COPIES = {"all_reduce": 1.25, "all_gather": 2.0, "reduce_scatter": 0.75}


def copies_time(times, name, backend):
    return times[f"{name}/2ranks/16777216B/{backend}"] / times["copy/16777216B"] / COPIES[name]


def collectives_table(times):
    copy = times["copy/16777216B"]
    rows = []
    for name in COPIES:
        large = [f"{times[f'{name}/2ranks/16777216B/{backend}'] / 1000:.2f} ({copies_time(times, name, backend):.1f})"
                 for backend in ("threads", "shm")]
        small = [times[f"{name}/2ranks/64B/{backend}"] for backend in ("threads", "shm", "gloo")]
        rows.append([name] + [f"{t:.1f}" for t in small] + large)
    header = ["2 ranks", "16 floats: threads, us", "shm", "gloo", "16 MiB: threads, ms (copies' time)", "shm"]
    crowded = [[name] + [f"{times[f'{name}/4ranks/65536B/{backend}']:.1f}" for backend in ("threads", "shm", "gloo")] for name in COPIES]
    return (f"A copy of 16 MiB takes {copy / 1000:.2f} ms.\n\n" + table(header, rows) + "\nMore ranks than cores:\n\n" +
            table(["4 ranks, 64 KiB", "threads, us", "shm", "gloo"], crowded))


def operators_table(times):
    rows = []
    for name in sorted(times):
        if name.endswith("/plain"):
            plain, split = times[name], times[name.removesuffix("plain") + "distributed"]
            rows.append([name.removesuffix("/plain"), f"{plain:.2f}", f"{split:.2f}", f"{split - plain:.2f}"])
        elif not name.endswith("/distributed"):
            rows.append([name, "", f"{times[name]:.2f}", ""])
    return table(["operator", "plain, us", "distributed, us", "more, us"], rows)


def jax_line(threads, jax):
    if jax is None:
        return "JAX was not installed in this run.\n"
    step = next(row for row in threads["rows"] if row["name"].startswith("small tensor-parallel step"))
    return (f"The small step compiled by JAX {jax['jax']} on two devices of the CPU: {jax['us']:.0f} us; meshtorch on two threads takes "
            f"{step['us'] / jax['us']:.2f} times that (`benchmarks/jax_step.py`).\n")


def waiting_line(results):
    rows = [(r["backend"], r["waiting_cpu_share"]) for r in results]
    return "CPU time of a rank that waits for another: " + ", ".join(f"{share:.1%} of the wait on {name}" for name, share in rows) + ".\n"


def scale_table(scale):
    rows = []
    for row in scale["rows"]:
        memory = [row["megabytes_before"], *row["megabytes"]]
        rows.append([f"{row['ranks']:,}", f"{row['mesh_ms']:.1f}", f"{row['cold_step_ms']:.1f}", f"{row['cached_step_ms']:.2f}",
                     " ".join(f"{m:.0f}" for m in memory), f"{row['decisions_kept']:,}"])
    return table(["ranks", "mesh, ms", "first step, ms", "later steps, ms",
                  f"MB before and after each fifth of {scale['operators']:,} operators of other shapes", "decisions kept"], rows)


def llama_table(llama):
    one = next(iter(llama["training_seconds"].values()))
    rows = [["training step, " + name, f"{s * 1e3:.0f} ms", f"{one / s:.2f} of one rank's speed"]
            for name, s in llama["training_seconds"].items()]
    rows += [["`generate`, " + name, f"{t:.1f} tokens/s", f"{t / llama['bound']:.0%} of what memory allows"]
             for name, t in llama["tokens_per_second"].items()]
    return table(["Llama", "", ""], rows)


def data_parallel_section(results):
    """A step of data-parallel training beside PyTorch's, where it was measured."""
    file = results / "data_parallel.json"
    if not file.exists():
        return ""
    lines = json.loads(file.read_text())
    dims = sorted({line["dim"] for line in lines})
    rows = {}
    for line in lines:
        rows.setdefault(line["row"], {})[line["dim"]] = f"{line['ms']:.1f} ({line['cpu_ms']:.1f})"
    header = ["ms a step (CPU of a rank)", *(f"dim {dim}" for dim in dims)]
    body = table(header, [[row, *(found.get(dim, "") for dim in dims)] for row, found in rows.items()])
    return f"\n## Data parallelism\n\n{body}"


def waiting_section(rows):
    """What ranks cost that wait for each other, idle and beside other programs."""
    found = {}
    for row in rows:
        found.setdefault(row["ranks"], []).append((row["busy_loops"], row["wall_ms"], row["cpu_ms"]))
    body = table(["thread ranks", "alone: wall (CPU), ms", "beside a busy program on each core: wall (CPU), ms"],
                 [[str(ranks), *(f"{wall:.2f} ({cpu:.2f})" for _, wall, cpu in sorted(pair))] for ranks, pair in found.items()])
    return f"""
## More ranks than cores, and busy machines

A small tensor-parallel step; the CPU time is that of all ranks together.

{body}"""


# Why a target is missed, where it is: what profiles of `build/release` show, with the command. Numbers of one run of `make bench` are filled in.
REASONS = {
    "step": """The step runs {step:.2f} times the instructions of the one by hand (`ctest -R instructions -V`). Of what it has more (`valgrind
--tool=callgrind --instr-atstart=no build/release/tests/instruction_count`, the part named `step`, inclusive), two thirds make and destroy the
tensors that stand for shards: `wrap` and `~DTensorMeta`, 0.30 of 0.44 million a step. A quarter finds what was decided (`CachedCall`, 0.11 million).
Backward has 61 nodes, by hand 64.""",
    "jax": """By hand the step takes {hand_over_jax:.2f} times JAX's, which compiles forward, backward and update into one program; here each operator
is called by itself, through LibTorch's dispatcher and engine: of the instructions of the step by hand 16 % only carry the engine's thread-local state
from node to node (`setThreadLocalState` in the same profile).""",
    "adamw": """The loop runs {adamw:.2f} times the instructions of the plain one (`ctest -R instructions -V`): {adamw_more:,.0f} more for each of the nine
operators of a parameter, which is dispatched twice, for the tensor and for its shard, and looks up what was decided between the two.""",
    "redistribution": """`redistribute` and `to_local` run 7,800 instructions beside the collective (callgrind on both sides of `P to R of 256 KiB`, two
threads): two tensors, the look-up of the move, the record of it. That is one to two microseconds whatever the size, and shows beside collectives of ten. The bare all_to_all gets its bytes packed; a redistribution between dims moves them in rows of 1 to 4 KiB, to where they
belong, and that is in its time.""",
    "large": """Processes cannot read each other's memory: what another rank needs is written to a shared segment and read there, so that a rank of two reads and
writes 40 MiB in a reduce_scatter of 16, where a thread moves 24, and 72 MiB in an all_reduce of 16, where 32 would do (`src/backends/memory_exchange.cc`; a part of it stays in the
caches). A rank's own part goes through no segment.""",
    "training": """In a profile of two thread ranks (`perf record build/release/examples/llama/meshtorch-llama train --dp 2 …`, taken beside other programs) 81 % of
the time is LibTorch's, 70 % its matrix products, 12 % the kernel's, most of it for fresh pages; meshtorch's own code has 1 %, beside filling the parameters once. Ranks communicate or wait for each other for {tp_share:.0%} of the
time with tp 2 and {dp_share:.0%} with dp 2; one rank with two operator threads spends {one_share:.0%} in the same calls, with nobody to meet.""",
    "generate": """LibTorch's products of one row with these weights, by themselves in two processes at a time, allow {products:.0f} tokens/s
({products_part:.0%} of the bound), where a sum that only reads the weights allows {read:.0f} (`benchmarks/llama.py`): on this processor MKL multiplies one row in its code for any
processor (`mkl_blas_def_xsgemv` in `perf record … generate`). `generate` stores each weight with the longer side of the shard together, which is up to 1.6 times
as fast as the other way round. What is left of a token's time is {other_ms:.1f} ms: its other operators and the collectives.""",
}


def instructions():
    kept = json.loads((pathlib.Path(__file__).parent.parent / "tests/instructions/kept.json").read_text())["instructions"]
    times = 50  # that each piece of work is counted
    return {
        "step": kept["step"] / kept["step_by_hand"],
        "adamw": kept["adamw"] / kept["adamw_by_hand"],
        "adamw_more": (kept["adamw"] - kept["adamw_by_hand"]) / times / 10 / 9,
    }


def numbers_of_reasons(threads, jax, llama):
    step = next(row for row in threads["rows"] if row["name"].startswith("small tensor-parallel step"))
    shares, tokens = llama["communication_shares"], llama["tokens_per_second"]["tp 2"]
    return instructions() | {
        "hand_over_jax": step["us_of_that"] / jax["us"] if jax else 0,
        "tp_share": shares["tp 2"],
        "dp_share": shares["dp 2"],
        "one_share": shares["1 rank, 2 operator threads"],
        "products": llama["products_tokens_per_second"],
        "products_part": llama["products_tokens_per_second"] / llama["bound"],
        "read": llama["read_tokens_per_second"],
        "other_ms": 1e3 / tokens - 1e3 / llama["products_tokens_per_second"],
    }


def targets(threads, shm, times, jax, llama):
    """(what, measured, wanted, whether more is better, the reason if it is missed) for each target."""
    ratio = lambda results, start: next(row for row in results["rows"] if row["name"].startswith(start))
    step = "small tensor-parallel step"
    found = [
        ("all_reduce of 16 floats, threads, us", times["all_reduce/2ranks/64B/threads"], 8, False, "large"),
        ("all_reduce of 16 floats, shm, us", times["all_reduce/2ranks/64B/shm"], 10, False, "large"),
    ]
    for name in COPIES:
        for backend in ("threads", "shm"):
            found.append((f"{name} of 16 MiB, {backend}, copies' time", copies_time(times, name, backend), 2, False, "large"))
    for results in (threads, shm):
        worst = max(results["rows"][2:], key=lambda row: row["ratio"])
        found.append((f"redistribution over the bare collective, {results['backend']}, the worst: {worst['name']}", worst["ratio"],
                      REDISTRIBUTION, False, "redistribution"))
    found.append(("small step over by hand, threads", ratio(threads, step)["ratio"], 1.25, False, "step"))
    if jax is not None:
        found.append(("small step over JAX's", ratio(threads, step)["us"] / jax["us"], 1.0, False, "jax"))
    found.append(("small step, shm over threads", ratio(shm, step)["us"] / ratio(threads, step)["us"], 1.3, False, "step"))
    found.append(("AdamW on 300 small parameters over plain", ratio(threads, "AdamW")["ratio"], 1.3, False, "adamw"))
    seconds = llama["training_seconds"]
    one = next(iter(seconds.values()))
    found.append(("Llama training, dp 2, of one rank's speed", one / seconds["dp 2"], 1.1, True, "training"))
    found.append(("Llama training, tp 2, of one rank's speed", one / seconds["tp 2"], 1.0, True, "training"))
    found.append(("`generate`, tp 2, of what memory allows", llama["tokens_per_second"]["tp 2"] / llama["bound"], 0.9, True, "generate"))
    return found


def targets_section(threads, shm, times, jax, llama):
    rows, missed = [], {}
    for what, measured, wanted, more_is_better, reason in targets(threads, shm, times, jax, llama):
        by = (wanted / measured if more_is_better else measured / wanted) - 1
        rows.append([what, f"{measured:.2f}", f"{'>=' if more_is_better else '<='} {wanted}", "met" if by <= 0 else f"missed by {by:.0%}"])
        if by > 0:
            missed.setdefault(reason, []).append(what)
    body = table(["what", "measured", "wanted", ""], rows)
    numbers = numbers_of_reasons(threads, jax, llama)
    for reason, names in missed.items():
        body += f"\n**{names[0][0].upper()}{names[0][1:]}" + "".join(f"; {name}" for name in names[1:]) + ".** "
        body += REASONS[reason].format(**numbers) + "\n"
    share = numbers["tp_share"]
    return body + f"""
Products that are cut in chunks and run beside their collectives (async TP) are not built: all that they could hide is the {share:.0%} of a step with tp 2 in
which ranks communicate or wait, and here the copies of a collective are made by the cores that would multiply meanwhile.
"""


def drawing(threads, shm):
    """Bars of all ratios, with a line at 1."""
    rows = list(zip(threads["rows"], shm["rows"]))
    height, left, scale, most = 22, 270, 180, 2.5
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + int(scale * most) + 60}" '
           f'height="{height * len(rows) + 50}" font-family="sans-serif" font-size="12">',
           '<rect width="100%" height="100%" fill="white"/>']
    for i, (row, other) in enumerate(rows):
        y = 30 + i * height
        svg.append(f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{row["name"]}</text>')
        for j, (measured, colour) in enumerate(((row, "#4472c4"), (other, "#ed7d31"))):
            width = scale * min(measured["ratio"], most)
            svg.append(f'<rect x="{left}" y="{y + 1 + 9 * j}" width="{width:.1f}" height="8" fill="{colour}">'
                       f'<title>{measured["ratio"]:.2f}</title></rect>')
    end = 30 + height * len(rows)
    svg.append(f'<line x1="{left + scale}" y1="20" x2="{left + scale}" y2="{end}" stroke="black" stroke-dasharray="3"/>')
    svg.append(f'<text x="{left + scale}" y="15" text-anchor="middle">1</text>')
    svg.append(f'<text x="{left}" y="{end + 15}" fill="#4472c4">threads</text>'
               f'<text x="{left + 70}" y="{end + 15}" fill="#ed7d31">shm</text></svg>')
    return "\n".join(svg) + "\n"


def main():
    results, docs = map(pathlib.Path, sys.argv[1:3])
    load = lambda name: json.loads((results / name).read_text())
    threads, shm = load("ratios_threads.json"), load("ratios_shm.json")
    comm, operators = load("comm.json"), least_times(load("operators.json"))
    jax = load("jax.json") if (results / "jax.json").exists() else None
    cpus = comm["context"]["num_cpus"]
    page = f"""# Benchmarks

Made by `make bench` ({platform.machine()}, {cpus} cores, 2 ranks) from `benchmarks/results/*.json`. Times are the least of their rounds. Both sides of a
ratio are run in turns in one process.

![Ratios](benchmarks.svg)

## Over the same work by hand

{ratios_table(threads, shm)}
A shard's bytes are half of the KiB that a line names; of a pending sum each rank has all of them.

{jax_line(threads, jax)}
{waiting_line([threads, shm])}
## Targets

{targets_section(threads, shm, least_times(comm), jax, load("llama.json"))}
## Collectives

{collectives_table(least_times(comm))}
Copies' time: the measured time over that of copying the bytes that a rank must read and write.

## Operators

{operators_table(operators)}
## Llama

{llama_table(load("llama.json"))}
Training: hidden 512, 6 layers, 8 rows of 128 tokens. `generate`: float32, one prompt; memory allows as many tokens a second as a copy's bandwidth holds the bytes of
the weights (`benchmarks/llama.py`).

## Scale

One rank of a large world on the `fake` backend, dp x tp 8 (`scale_benchmark`); the step is the small one above.

{scale_table(load("scale.json"))}{waiting_section(load("waiting.json"))}{data_parallel_section(results)}"""
    (docs / "benchmarks.md").write_text(page)
    (docs / "benchmarks.svg").write_text(drawing(threads, shm))


main()

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


def collectives_table(times):
    copy = times["copy/16777216B"]
    # What one of two ranks must read and write, in bytes of its own 16 MiB: in copies, which read and write one.
    must = {"all_reduce": 1.25, "all_gather": 2.0, "reduce_scatter": 0.75}
    rows = []
    for name, copies in must.items():
        large = [times[f"{name}/2ranks/16777216B/{backend}"] for backend in ("threads", "shm")]
        small = [times[f"{name}/2ranks/64B/{backend}"] for backend in ("threads", "shm", "gloo")]
        rows.append([name] + [f"{t:.1f}" for t in small] + [f"{t / 1000:.2f} ({t / copy / copies:.1f})" for t in large])
    header = ["2 ranks", "16 floats: threads, us", "shm", "gloo", "16 MiB: threads, ms (copies' time)", "shm"]
    return f"A copy of 16 MiB takes {copy / 1000:.2f} ms.\n\n" + table(header, rows)


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

{scale_table(load("scale.json"))}{data_parallel_section(results)}"""
    (docs / "benchmarks.md").write_text(page)
    (docs / "benchmarks.svg").write_text(drawing(threads, shm))


main()

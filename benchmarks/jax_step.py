"""The small tensor-parallel step of ratio_benchmark in JAX, compiled, on two devices of the CPU; microseconds, the least of its rounds.

Prints `skipped: …` where JAX is not installed: `jax_step.py [RESULTS.json]`.
"""

import json
import os
import pathlib
import sys
import time

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
RANKS, BLOCKS, WIDTH, HIDDEN, SEQUENCE = 2, 4, 64, 256, 8
ROUNDS, TIMES = 25, 20


def make_step(jax):
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    jnp = jax.numpy
    mesh = Mesh(jax.devices()[:RANKS], ("tp",))
    layout = {"up": P(None, "tp"), "up_bias": P("tp"), "down": P("tp", None), "down_bias": P()}
    shapes = {"up": (WIDTH, HIDDEN), "up_bias": (HIDDEN,), "down": (HIDDEN, WIDTH), "down_bias": (WIDTH,)}

    def place(name, key):
        return jax.device_put(0.05 * jax.random.normal(key, shapes[name]), NamedSharding(mesh, layout[name]))

    keys = iter(jax.random.split(jax.random.PRNGKey(0), BLOCKS * len(shapes)))
    blocks = [{name: place(name, next(keys)) for name in shapes} for _ in range(BLOCKS)]
    x = jax.device_put(jnp.ones((1, SEQUENCE, WIDTH)), NamedSharding(mesh, P()))

    def loss(blocks, x):
        for b in blocks:
            x = jnp.maximum(x @ b["up"] + b["up_bias"], 0) @ b["down"] + b["down_bias"]
        return (x * x).sum()

    @jax.jit
    def step(blocks, x):
        gradients = jax.grad(loss)(blocks, x)
        return jax.tree_util.tree_map(lambda p, g: p - 1e-4 * g, blocks, gradients)

    return step, blocks, x


def main():
    try:
        import jax
    except ImportError:
        print("skipped: JAX is not installed; `pip install jax` into the Python that runs this")
        return
    step, blocks, x = make_step(jax)
    for _ in range(3):
        blocks = jax.block_until_ready(step(blocks, x))
    least = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(TIMES):
            blocks = step(blocks, x)
        jax.block_until_ready(blocks)
        least = min(least, (time.perf_counter() - begin) / TIMES * 1e6)
    print(f"small tensor-parallel step in JAX {jax.__version__}: {least:.0f} us")
    if len(sys.argv) > 1:
        pathlib.Path(sys.argv[1]).write_text(json.dumps({"jax": jax.__version__, "us": least}) + "\n")


main()

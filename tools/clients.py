#!/usr/bin/env python3
"""Runs programs that nobody here wrote, torchtitan, transformers, accelerate and lightning, as they are on PyTorch and on meshtorch, and
writes docs/clients.md. Their packages lie in a folder of their own: with --install they are downloaded from PyPI.

    tools/clients.py --install --packages DIR     once
    tools/clients.py --packages DIR               all, about 20 minutes; --only titan: some
"""

import argparse
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Wheels without their dependencies; torch is that of the environment.
PACKAGES = """
    torchtitan==0.2.2 transformers==5.23.0 accelerate==1.15.0 lightning==2.6.6 lightning-utilities torchmetrics tyro torchdata datasets tensorboard
    einops docstring_parser typeguard psutil dill xxhash multiprocess pyarrow pandas python-dateutil pytz tzdata requests tqdm fsspec
    huggingface_hub safetensors tokenizers numpy packaging pyyaml regex filelock typing_extensions urllib3 certifi protobuf absl-py grpcio
    markdown werkzeug six
""".split()
# client: (program, {model: configurations}); a configuration is a number of ranks and the program's arguments.
_DENSE = ["2 tp=2", "2 dp_shard=2", "2 dp_replicate=2", "2 cp=2", "4 dp_shard=2 tp=2", "4 dp_replicate=2 dp_shard=2", "2 tp=2 ac=full",
          "2 tp=2 ac=selective", "2 dp_shard=2 ac=selective", "2 tp=2 loss_parallel=off"]  # fmt: skip
# Experts under tensor parallelism: the router's copies drift apart, on PyTorch too, since torchtitan does not add up their gradients. Ranks
# compare calls and no values there; by default meshtorch names the copies that differ.
_DRIFT = "MESHTORCH_AGREEMENT=calls"
_EXPERTS = [f"2 tp=2 {_DRIFT}", "2 dp_shard=2", "2 dp_shard=2 ep=2", "4 dp_shard=2 tp=2 ep=2", f"4 dp_shard=2 tp=2 ep=2 etp=2 {_DRIFT}"]
_OF_MODELS = ["2 tp_size=2", "2 fsdp_size=2", "4 tp_size=2 fsdp_size=2"]
CLIENTS = {
    "torchtitan": (
        "titan.py",
        {"llama3": _DENSE, "qwen3": ["2 tp=2", "2 dp_shard=2", "4 dp_shard=2 tp=2"], "qwen3_moe": _EXPERTS, "deepseek_v3": _EXPERTS},
    ),
    "transformers": (
        "transformers_steps.py",
        {"llama": _OF_MODELS, **{model: _OF_MODELS[:2] for model in ("qwen2", "qwen3", "qwen3_moe", "mixtral", "phi3", "gemma2")}},
    ),
    "accelerate": ("accelerate_steps.py", {"": ["2 ", "2 reshard=no", "2 efficient=yes"]}),
    "lightning": ("lightning_steps.py", {"": ["2 tp=2", "2 dp=2", "4 dp=2 tp=2"]}),
}
TOLERANCE = 2e-5


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(options, program, ranks, arguments, on_meshtorch):
    """What rank 0 printed, or the last error of any rank."""
    package = ["-m", "meshtorch", "run"] if on_meshtorch else []
    command = [sys.executable, "-W", "ignore", *package, str(ROOT / "tools" / "clients" / program), *arguments]
    site = Path(next(path for path in sys.path if path.endswith("site-packages")))
    folders = [str(options.pythonpath), str(site), str(options.packages)]
    common = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(ranks)}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1"}
    common |= options.environment if on_meshtorch else {}
    started = [
        subprocess.Popen(
            command,
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    texts = []
    for process in started:
        try:
            texts.append(process.communicate(timeout=options.timeout)[0])
        except subprocess.TimeoutExpired:
            process.kill()
            texts.append(process.communicate()[0] + "\nTimeoutError: no end\n")
    found = re.search(r"^RESULT (.*)$", texts[0], re.MULTILINE)
    if found:
        return json.loads(found[1])
    errors = [line for text in texts for line in re.findall(r"^(?:\[rank\d+\]: )?(\w[\w.]*(?:Error|Exception)\b.*)$", text, re.MULTILINE)]
    own = [line for line in errors if "Connection closed" not in line and "Broken pipe" not in line]
    return {"error": (own or errors or ["no result"])[-1][:160]}


def difference(one, other):
    """The largest relative difference of losses, norms and weights."""
    pairs = []
    for key in ("losses", "norms"):
        pairs += zip(one.get(key, []), other.get(key, []))
    return max(abs(a - b) / max(1e-3, abs(b)) for a, b in pairs)


def cell(result):
    if "error" in result:
        return "| " + result["error"].split(":")[0] + " | |"
    return f"| {result['ms']:.0f} | {'' if result['collectives'] is None else result['collectives']} |"


def verdict(ours, theirs, alone):
    if "error" in ours:
        return "fails: " + ours["error"].replace("|", "/")
    away = difference(ours, alone)
    if "error" not in theirs:
        away = min(away, difference(ours, theirs))
    return ("right" if away < TOLERANCE else f"off by {away:.1g}") + ("" if ours.get("generated") == alone.get("generated") else ", generates other tokens")


def rows(options):
    for client, (program, models) in CLIENTS.items():
        for model, configurations in models.items():
            if options.only and options.only not in f"{client} {model}":
                continue
            options.environment = {}
            alone = run(options, program, 1, [model] * bool(model), on_meshtorch=False)
            for configuration in configurations:
                count, *arguments = configuration.split()
                options.environment = dict(pair.split("=") for pair in arguments if pair.startswith("MESHTORCH_"))
                arguments = [pair for pair in arguments if not pair.startswith("MESHTORCH_")]
                arguments = [model] * bool(model) + arguments
                theirs = run(options, program, int(count), arguments, on_meshtorch=False)
                ours = run(options, program, int(count), arguments, on_meshtorch=True)
                name = f"{client} {model}".strip()
                row = f"| {name} | {' '.join(arguments[bool(model) :]) or 'fsdp'}{', calls' * bool(options.environment)} | {count} | {verdict(ours, theirs, alone)} {cell(ours)}{cell(theirs)[1:]}"
                print(row, flush=True)
                yield row


def write_page(found):
    page = ROOT / "docs" / "clients.md"
    head = page.read_text().split("<!-- table -->")[0]
    table = "\n".join(
        ["| client | configuration | ranks | result | ms a step | collectives | PyTorch: ms | collectives |", "|---|---|---|---|---|---|---|---|", *found]
    )
    page.write_text(f"{head}<!-- table -->\n{table}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True, help="folder of the clients' packages")
    parser.add_argument("--install", action="store_true", help="download them there")
    parser.add_argument("--pythonpath", type=Path, default=ROOT / "build" / "release" / "python", help="folder of meshtorch's package")
    parser.add_argument("--only", default="", help="clients and models whose names contain this; the page stays as it is")
    parser.add_argument("--timeout", type=float, default=180)
    options = parser.parse_args()
    if options.install:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(options.packages), *PACKAGES]
        subprocess.run(command, check=True)
        return
    found = list(rows(options))
    if not options.only:
        write_page(found)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Runs programs that nobody here wrote, torchtitan, transformers and others, as they are on PyTorch and on meshtorch, and writes their rows
of docs/clients.md. Their packages lie in a folder of their own: with --install they are downloaded from PyPI. The programs of
pytorch/examples are run from a checkout of it in DIR/examples.

    tools/clients.py --install --packages DIR                   once
    tools/clients.py --packages DIR                             all, about an hour
    tools/clients.py --packages DIR --only "titan llama3"       the rows whose client, model and configuration contain these words
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
    markdown werkzeug six torchao==0.10.0 torchtune==0.6.1 omegaconf antlr4-python3-runtime==4.9.3
    sentencepiece tiktoken blobfile
""".split()
# client: (program, {model: configurations}); a configuration is a number of ranks and the program's arguments.
_DENSE = ["2 tp=2", "2 dp_shard=2", "2 dp_replicate=2", "2 cp=2", "4 dp_shard=2 tp=2", "4 dp_replicate=2 dp_shard=2", "2 tp=2 ac=full",
          "2 tp=2 ac=selective", "2 dp_shard=2 ac=full", "2 dp_shard=2 ac=selective", "2 tp=2 loss_parallel=off", "2 dp_shard=2 dtype=bfloat16",
          "2 dp_shard=2 checkpoint=disabled", "2 dp_shard=2 checkpoint=async", "4 dp_shard=2 tp=2 checkpoint=disabled"]  # fmt: skip
# Experts under tensor parallelism: the router's copies drift apart, on PyTorch too, since torchtitan does not add up their gradients. Ranks
# compare calls and no values there; by default meshtorch names the copies that differ.
_DRIFT = "MESHTORCH_AGREEMENT=calls"
_EXPERTS = [f"2 tp=2 {_DRIFT}", "2 dp_shard=2", "2 dp_shard=2 ep=2", "4 dp_shard=2 tp=2 ep=2", f"4 dp_shard=2 tp=2 ep=2 etp=2 {_DRIFT}"]
_OF_MODELS = ["2 tp_size=2", "2 fsdp_size=2", "4 tp_size=2 fsdp_size=2"]
CLIENTS = {
    "torchtitan": (
        "titan.py",
        {
            "llama3": _DENSE,
            "qwen3": ["2 tp=2", "2 dp_shard=2", "4 dp_shard=2 tp=2"],
            "qwen3_moe": _EXPERTS,
            "deepseek_v3": _EXPERTS,
        },
    ),
    "transformers": (
        "transformers_steps.py",
        {"llama": _OF_MODELS, **{model: _OF_MODELS[:2] for model in ("qwen2", "qwen3", "qwen3_moe", "mixtral", "phi3", "gemma2")}},
    ),
    "accelerate": ("accelerate_steps.py", {"": ["2 ", "2 reshard=no", "2 efficient=yes"]}),
    "lightning": ("lightning_steps.py", {"": ["2 tp=2", "2 dp=2", "4 dp=2 tp=2"]}),
    "torchtune": ("torchtune_steps.py", {"": ["2 tp=2", "2 dp=2", "4 dp=2 tp=2"]}),
    "torchao": ("torchao_steps.py", {"AdamW8bit": ["2 "]}),
    "tutorials": ("tutorials.py", {"checkpoint": ["2 "], "async_checkpoint": ["2 "], "device_mesh": ["4 "]}),
    "examples": (
        "examples.py",
        {
            **{f"tensor_parallelism/{name}_example.py": [f"{ranks} "] for name, ranks in (("tensor_parallel", 2), ("sequence_parallel", 2), ("fsdp_tp", 4))},
            "FSDP2/example.py": ["2 again", "2 again --dcp-api", "2 again --mixed-precision --explicit-prefetching"],
            "minGPT-ddp/mingpt/main.py": ["2 "],
        },
    ),
}
# Of a relative difference; results in bfloat16, of which neighbours differ by 2^-8, are compared with PyTorch's alone.
TOLERANCE, TOLERANCE_BFLOAT16 = 2e-5, 2**-7
HEAD = "| client | configuration | ranks | result | ms a step | collectives | PyTorch: ms | collectives |\n|---|---|---|---|---|---|---|---|"


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
    common |= {"EXAMPLES": str(options.packages / "examples"), "TORCH_CPP_LOG_LEVEL": "ERROR"}
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
    """The largest relative difference of losses and norms; None if the other gave none, or others."""
    pairs = [(a, b) for key in ("losses", "norms") for a, b in zip(one.get(key, []), other.get(key, []))]
    return max((abs(a - b) / max(1e-3, abs(b)) for a, b in pairs), default=None)


def cell(result):
    if "error" in result:
        return "fails | |"
    return f"{result['ms']:.0f} | {'' if result['collectives'] is None else result['collectives']} |"


def verdict(ours, theirs, alone, tolerance):
    if "error" in ours:
        return "fails: " + ours["error"].replace("|", "/")
    away = [found for other in (theirs, alone) if (found := difference(ours, other)) is not None]
    if not away:
        return "runs, not compared"
    tokens = alone.get("generated", ours.get("generated")) == ours.get("generated")
    return ("right" if min(away) < tolerance else f"off by {min(away):.1g}") + ("" if tokens else ", generates other tokens")


def rows(options):
    """(what a row is of, the row) of each configuration that is asked for."""
    for client, (program, models) in CLIENTS.items():
        for model, configurations in models.items():
            alone = None
            for configuration in configurations:
                count, *words = configuration.split()
                title = f"{client} {model}".strip()
                if options.only and not set(options.only.split()) <= set(f"{title} {configuration}".split()):
                    continue
                options.environment = dict(word.split("=") for word in words if word.startswith("MESHTORCH_"))
                words = [word for word in words if not word.startswith("MESHTORCH_")]
                arguments = [model] * bool(model) + words
                is_reduced = not {"dtype=bfloat16", "--mixed-precision"}.isdisjoint(words)
                if alone is None:
                    print(f"{title}: one process", file=sys.stderr, flush=True)
                    has_one = client not in ("examples", "tutorials")
                    alone = run(options, program, 1, [model] * bool(model), on_meshtorch=False) if has_one else {}
                print(f"{title} {configuration}", file=sys.stderr, flush=True)
                theirs = run(options, program, int(count), arguments, on_meshtorch=False)
                ours = run(options, program, int(count), arguments, on_meshtorch=True)
                result = verdict(ours, theirs, {} if is_reduced else alone, TOLERANCE_BFLOAT16 if is_reduced else TOLERANCE)
                what = f"| {title} | {' '.join(words)}{', level `calls`' * bool(options.environment)} | {count} |"
                row = f"{what} {result} | {cell(ours)} {cell(theirs)}"
                print(row, flush=True)
                yield what, row


def write_row(what, row):
    """Into the table of the page: in the place of the row of before, or at the end."""
    page = ROOT / "docs" / "clients.md"
    head, _, table = page.read_text().partition("<!-- table -->\n")
    found = [line for line in table.splitlines()[2:] if line.strip()]
    places = [place for place, line in enumerate(found) if line.startswith(what)]
    found[slice(places[0], places[0] + 1) if places else slice(len(found), None)] = [row]
    page.write_text("\n".join([f"{head}<!-- table -->", HEAD, *found, ""]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True, help="folder of the clients' packages")
    parser.add_argument("--install", action="store_true", help="download them there")
    parser.add_argument("--pythonpath", type=Path, default=ROOT / "build" / "release" / "python", help="folder of meshtorch's package")
    parser.add_argument("--only", default="", help="words that the client, model or configuration have, all of them")
    parser.add_argument("--dry", action="store_true", help="leave the page as it is")
    parser.add_argument("--timeout", type=float, default=300)
    options = parser.parse_args()
    if options.install:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(options.packages), *PACKAGES]
        subprocess.run(command, check=True)
        return
    for what, row in rows(options):
        if not options.dry:
            write_row(what, row)


if __name__ == "__main__":
    main()

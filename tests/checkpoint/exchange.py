"""Files of Python's safetensors are read here, and ours there; folders of torch.distributed.checkpoint are read here:
exchange.py REWRITE, the program of rewrite.cc."""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import load_file, save_file

TYPES = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
         torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
         torch.float8_e4m3fn, torch.float8_e5m2]


def bytes_of(tensor):
    return tensor.contiguous().flatten().view(torch.uint8)


def rewritten(source, target, expected):
    """What the program makes of the source is what was stored there."""
    subprocess.run([sys.argv[1], source, target], check=True)
    loaded = load_file(target)
    assert loaded.keys() == expected.keys(), loaded.keys() ^ expected.keys()
    for name, tensor in expected.items():
        assert loaded[name].dtype == tensor.dtype and loaded[name].shape == tensor.shape, name
        assert torch.equal(bytes_of(loaded[name]), bytes_of(tensor)), name


with tempfile.TemporaryDirectory() as scratch:
    theirs, ours = Path(scratch) / "theirs.safetensors", Path(scratch) / "ours.safetensors"
    tensors = {str(t): torch.arange(15).remainder(7).to(torch.float32).to(t).view(3, 5) for t in TYPES}
    tensors |= {"scalar": torch.tensor(2.5), "empty": torch.empty(0, 4), "odd name \u00e9\"\\": torch.ones(1)}
    save_file(tensors, theirs, metadata={"format": "pt", "note": "\u00e9"})
    rewritten(theirs, ours, tensors)
    with safe_open(ours, framework="pt") as file:
        assert file.metadata() == {"format": "pt", "note": "\u00e9"}, file.metadata()
    # LibTorch's own reader of what torch.save writes lacks the younger types.
    known = {name: t for name, t in tensors.items() if not any(word in name for word in ("uint16", "uint32", "uint64", "float8"))}
    folder = Path(scratch) / "folder"
    dcp.save({"model": known, "step": 7}, checkpoint_id=folder)
    rewritten(folder, ours, {f"model.{name}": tensor for name, tensor in known.items()})
print(f"{len(tensors)} tensors exchanged")

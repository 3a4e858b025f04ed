"""python -m meshtorch: runs a program that imports torch.distributed.tensor on meshtorch."""

import argparse
import runpy
import sys
from pathlib import Path


def _print_replaced(drop_in):
    width = max(map(len, drop_in.replaced()))
    for theirs, ours in drop_in.replaced().items():
        print(f"{theirs:{width}}  {ours}", file=sys.stderr)
    if drop_in.passed_on():
        print("PyTorch's own, since meshtorch has none: " + ", ".join(drop_in.passed_on()), file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(prog="python -m meshtorch", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("replaced", help="print which modules of PyTorch `run` replaces")
    run = commands.add_parser("run", help="run a script, or with -m a module, with meshtorch in the place of PyTorch's modules")
    run.add_argument("--show-replaced", action="store_true", help="print at the end what was replaced, and what was PyTorch's own")
    run.add_argument("-m", dest="module", action="store_true", help="the program is the name of a module")
    run.add_argument("program")
    run.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    from meshtorch import drop_in

    if options.command == "replaced":
        _print_replaced(drop_in)
        return
    sys.argv = [options.program, *options.arguments]
    try:
        if options.module:
            runpy.run_module(options.program, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(options.program).resolve().parent)
            runpy.run_path(options.program, run_name="__main__")
    finally:
        if options.show_replaced:
            _print_replaced(drop_in)


if __name__ == "__main__":
    main()

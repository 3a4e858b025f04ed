"""python -m meshtorch: runs a program that imports torch.distributed.tensor on meshtorch, or says where the C++ part lies."""

import argparse
import runpy
import sys
from pathlib import Path

_FOLDERS = {"cmake_dir": "lib/cmake/meshtorch", "include_dir": "include", "library_dir": "lib"}


def _print_replaced(drop_in):
    width = max(map(len, drop_in.replaced()))
    for theirs, ours in drop_in.replaced().items():
        print(f"{theirs:{width}}  {ours}", file=sys.stderr)
    if drop_in.passed_on():
        print("PyTorch's own, since meshtorch has none: " + ", ".join(drop_in.passed_on()), file=sys.stderr)


def _print_folder(parser, name):
    path = Path(__file__).parent / name
    if not path.is_dir():
        told = f"meshtorch: {path} is not there: the package of a build folder has no C++ part\n  do: cmake --install, or install the wheel\n"
        parser.exit(1, told)
    print(path)


def _run(options):
    from meshtorch import drop_in

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


def main():
    parser = argparse.ArgumentParser(prog="python -m meshtorch", description=__doc__)
    parser.add_argument("--cmake-dir", action="store_true", help="print the folder for -Dmeshtorch_DIR or CMAKE_PREFIX_PATH")
    parser.add_argument("--include-dir", action="store_true", help="print the folder of the C++ headers")
    parser.add_argument("--library-dir", action="store_true", help="print the folder of libmeshtorch.so")
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("replaced", help="print which modules of PyTorch `run` replaces")
    run = commands.add_parser("run", help="run a script, or with -m a module, with meshtorch in the place of PyTorch's modules")
    run.add_argument("--show-replaced", action="store_true", help="print at the end what was replaced, and what was PyTorch's own")
    run.add_argument("-m", dest="module", action="store_true", help="the program is the name of a module")
    run.add_argument("program")
    run.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    folders = [folder for name, folder in _FOLDERS.items() if getattr(options, name)]
    for folder in folders:
        _print_folder(parser, folder)
    if options.command == "run":
        _run(options)
    elif options.command == "replaced":
        from meshtorch import drop_in

        _print_replaced(drop_in)
    elif not folders:
        parser.print_help()


if __name__ == "__main__":
    main()

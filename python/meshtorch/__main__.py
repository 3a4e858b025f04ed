"""python -m meshtorch: where the C++ part of the package lies."""

import argparse
import pathlib

_PACKAGE = pathlib.Path(__file__).parent


def main():
    parser = argparse.ArgumentParser(prog="python -m meshtorch", description=__doc__)
    parser.add_argument("--cmake-dir", action="store_true", help="print the folder for -Dmeshtorch_DIR or CMAKE_PREFIX_PATH")
    parser.add_argument("--include-dir", action="store_true", help="print the folder of the C++ headers")
    parser.add_argument("--library-dir", action="store_true", help="print the folder of libmeshtorch.so")
    options = parser.parse_args()
    folders = {"cmake_dir": "lib/cmake/meshtorch", "include_dir": "include", "library_dir": "lib"}
    wanted = [folder for name, folder in folders.items() if getattr(options, name)]
    if not wanted:
        parser.print_help()
    for folder in wanted:
        path = _PACKAGE / folder
        if not path.is_dir():
            parser.exit(1, f"meshtorch: {path} is not there: the package of a build folder has no C++ part\n  do: cmake --install, or install the wheel\n")
        print(path)


if __name__ == "__main__":
    main()

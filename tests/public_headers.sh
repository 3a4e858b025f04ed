#!/usr/bin/env bash
# Each public header compiles alone: public_headers.sh INCLUDE_DIRECTORY COMPILER FLAGS...
# Those that bring all of torch's modules are left to the examples, which include them first.
set -euo pipefail
include=$1
shift
export include
compile() { echo "#include \"${1#"$include/"}\"" | "${@:2}" -x c++ -fsyntax-only -Wall -Wextra -Werror -I "$include" - || { echo "$1 does not compile alone" >&2; return 1; }; }
export -f compile
find "$include/meshtorch" -name '*.h' ! -name meshtorch.h ! -name nn.h ! -name hooked.h -print0 |
  xargs -0 -P 2 -I{} bash -c 'compile "$@"' _ {} "$@"

#!/usr/bin/env bash
# Brings a fresh machine to the point where CMake finds everything; does nothing if all is there.
# setup.sh: what the tests need too. setup.sh --library: what C++ programs need, which of a CUDA build is a tenth.
#
# MESHTORCH_TORCH=2.15.0       the torch to install into .venv
# MESHTORCH_PYTHON, MESHTORCH_LIBTORCH, CMAKE_PREFIX_PATH    a LibTorch of your own; nothing is installed into .venv
# MESHTORCH_PIP_ARGS           further arguments of pip
set -euo pipefail
cd "$(dirname "$0")/.."

scope=${1:-tests}
oldest=2.13 newest=2.15
torch_version=${MESHTORCH_TORCH:-2.13.0}

say() { echo "meshtorch: $*"; }
fail() { say "$*" >&2; exit 1; }

# The column of tools/packages.txt for this machine; Debian 12's where the distribution is none of them.
distribution=$( . /etc/os-release 2>/dev/null && echo "${ID:-}-${VERSION_ID:-}" || true)
column=$(awk -v name="$distribution" '$1 == "#" && $2 == "probe" { for (i = 3; i <= NF; ++i) if ($i == name) print i - 1 }' tools/packages.txt)

missing=() from_pip=()
while read -r probe package; do
  case $probe in
    /*) [ -e "$probe" ] && continue ;;
    cmake) command -v cmake >/dev/null && [ "$(printf '%s\n' 3.25 "$(cmake --version | sed -n 's/.*version //p')" | sort -V | head -1)" = 3.25 ] && continue
           [ -x .venv/bin/cmake ] && continue ;;
    *) command -v "$probe" >/dev/null && continue ;;
  esac
  case $package in pip:*) from_pip+=("${package#pip:}") ;; *) missing+=("$package") ;; esac
done < <(awk -v column="${column:-2}" '!/^#/ && NF { print $1, $column }' tools/packages.txt)
python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
python3 -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null || missing+=(python3-dev)

if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing ${missing[*]}"
    apt-get update -q >/dev/null
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q "${missing[@]}" >/dev/null
  else
    fail "missing packages; run: sudo apt-get install ${missing[*]}"
  fi
fi

# A LibTorch that the user named wins over one of our own.
[ -z "${CMAKE_PREFIX_PATH:-}${MESHTORCH_PYTHON:-}${MESHTORCH_LIBTORCH:-}" ] || exit 0

# A torch in the active environment is used as it is: .venv gets a path to it, and nothing is downloaded.
use_active_torch() {
  [ -z "${MESHTORCH_TORCH:-}" ] || return 1
  python3 - "$oldest" "$newest" <<'PYTHON'
import sys, torch
version = [int(part) for part in torch.__version__.split("+")[0].split(".")[:2]]
oldest, newest = ([int(part) for part in text.split(".")] for text in sys.argv[1:])
sys.exit(not oldest <= version <= newest)
PYTHON
}

if [ ! -x .venv/bin/python ]; then
  active=""
  if use_active_torch 2>/dev/null; then
    active=$(python3 -c 'import os, torch; print(os.path.dirname(torch.__path__[0]))')
  fi
  python3 -m venv .venv || fail "python3 cannot make a virtual environment; run: sudo apt-get install python3-venv"
  if [ -n "$active" ]; then
    say "using torch in $active"
    echo "$active" > "$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/active_environment.pth"
  fi
fi
install() { .venv/bin/pip install --quiet ${MESHTORCH_PIP_ARGS:-} "$@"; }  # several arguments on purpose
# Of torch's requirements on CUDA's packages, those with the wanted parts; nothing for a CPU build.
cuda_packages() {
  .venv/bin/python - "$@" <<'PYTHON'
import importlib.metadata, re, sys
for line in importlib.metadata.requires("torch") or []:
    requirement = line.split(";")[0].strip()
    if requirement.startswith("cuda-toolkit["):
        print(re.sub(r"\[.*\]", "[" + ",".join(sys.argv[1:]) + "]", requirement))
    elif re.match(r"nvidia-cuda-(runtime|cupti)-cu1[0-9]", requirement):
        print(requirement)
PYTHON
}
version_of() { .venv/bin/python -c 'import importlib.metadata as m, sys; print(m.version(sys.argv[1]))' "$1" 2>/dev/null || true; }

[ ${#from_pip[@]} -eq 0 ] || { say "installing ${from_pip[*]} into .venv"; install "${from_pip[@]}"; }

torch_folder=$(.venv/bin/python -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])' 2>/dev/null || true)
is_ours=$([[ -z $torch_folder || $torch_folder == "$PWD"/.venv/* ]] && echo yes || true)
installed=$(version_of torch)
wanted_is_there=$([[ $installed == "$torch_version"* || ( -z ${MESHTORCH_TORCH:-} && -z $is_ours ) ]] && echo yes || true)
if [ -z "$wanted_is_there" ]; then
  say "installing torch $torch_version into .venv"
  install --no-deps "torch==$torch_version"
  is_ours=yes
fi
cuda=$(cuda_packages cudart cupti)
if [ "$scope" = --library ]; then
  if [ -n "$is_ours" ] && [ -n "$cuda" ] && ! ls .venv/lib/python3*/site-packages/nvidia/*/lib/libcupti.so* >/dev/null 2>&1; then
    say "installing what C++ programs need of CUDA"
    # shellcheck disable=SC2086  # several packages on purpose
    install $cuda
  fi
  exit 0
fi

# The tests of the Python package need all of torch, pytest and mypy; `make check` codespell; those of files exchanged with Python safetensors, those of the
# Llama example transformers.
wanted=()
for package in pytest expecttest numpy safetensors transformers mypy codespell; do
  [ -n "$(version_of "$package")" ] || wanted+=("$package")
done
if [ -n "$is_ours" ] && ! .venv/bin/python -c 'import torch, torch._dynamo' >/dev/null 2>&1; then
  [ -z "$cuda" ] || say "installing the CUDA libraries of torch: about 5 GB"
  wanted+=("torch==$torch_version")
fi
# With these headers the backend nccl is compiled.
if [ -n "$is_ours" ] && [ -n "$cuda" ] && ! ls .venv/lib/python3*/site-packages/nvidia/*/include/crt/host_config.h >/dev/null 2>&1; then
  mapfile -t headers < <(cuda_packages cudart cupti crt)
  wanted+=("${headers[@]}")
fi
[ ${#wanted[@]} -gt 0 ] || exit 0
say "installing ${wanted[*]} into .venv"
install "${wanted[@]}"

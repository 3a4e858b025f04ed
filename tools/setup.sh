#!/usr/bin/env bash
# Brings a fresh Debian machine to the point where CMake finds everything; does nothing when all is there.
set -euo pipefail
cd "$(dirname "$0")/.."

torch_version=2.13.0
declare -A package_of=(
  [g++]=g++ [cmake]=cmake [ninja]=ninja-build [python3]=python3
  [/usr/include/gloo/context.h]=libgloo-dev
  [/usr/include/gtest/gtest.h]=libgtest-dev
  [/usr/include/benchmark/benchmark.h]=libbenchmark-dev
  [/usr/include/nlohmann/json.hpp]=nlohmann-json3-dev
  [/usr/include/CLI/CLI.hpp]=libcli11-dev
  [/usr/include/xxhash.h]=libxxhash-dev
)

missing=()
for probe in "${!package_of[@]}"; do
  case $probe in
    /*) [ -e "$probe" ] || missing+=("${package_of[$probe]}") ;;
    *) command -v "$probe" >/dev/null || missing+=("${package_of[$probe]}") ;;
  esac
done
python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
python3 -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null || missing+=(python3-dev)

if [ ${#missing[@]} -gt 0 ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "meshtorch: installing ${missing[*]}"
    apt-get update -q >/dev/null
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q "${missing[@]}" >/dev/null
  else
    echo "meshtorch: missing packages; run: sudo apt-get install ${missing[*]}" >&2
    exit 1
  fi
fi

# A LibTorch that the user named wins over one of our own.
[ -z "${CMAKE_PREFIX_PATH:-}" ] || exit 0
[ -z "${MESHTORCH_PYTHON:-}" ] || exit 0

if [ ! -x .venv/bin/pip ] && ! python3 -m venv .venv; then
  echo "meshtorch: python3 cannot make a virtual environment; run: sudo apt-get install python3-venv" >&2
  exit 1
fi
# The torch wheel holds LibTorch; the others are for tests: of the Python package (pytest, and numpy, which torch's own debug tools
# want), of files exchanged with Python (safetensors), and of the Llama example against another one (transformers).
wanted=("torch==$torch_version" pytest expecttest numpy safetensors transformers)
missing=()
for package in "${wanted[@]}"; do
  installed=$(.venv/bin/python -c 'import importlib.metadata as m, sys; print(m.version(sys.argv[1]))' "${package%%=*}" 2>/dev/null || true)
  case $package in
    *==*) [[ $installed == "${package##*=}"* ]] || missing+=("$package") ;;
    *) [ -n "$installed" ] || missing+=("$package") ;;
  esac
done
[ ${#missing[@]} -gt 0 ] || exit 0
echo "meshtorch: installing ${missing[*]} into .venv"
# shellcheck disable=SC2086  # several arguments on purpose
.venv/bin/pip install --quiet ${MESHTORCH_PIP_ARGS:-} "${missing[@]}"

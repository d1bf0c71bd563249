#!/usr/bin/env bash
# Install the wheel of dist/ into a fresh environment for each supported Python, and try it there, in
# an empty folder and with an empty cache.
set -euo pipefail
cd "$(dirname "$0")/.."
checkout=$PWD
versions=$(sed -n 's/^ *"Programming Language :: Python :: \(3\.[0-9]*\)",$/\1/p' pyproject.toml)
tested=0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for version in $versions; do
  if ! "python$version" -c '' 2>/dev/null; then # a version manager may have the command without the Python
    echo "python$version is not on this machine: skipped"
    continue
  fi
  mkdir "$scratch/empty"
  "python$version" -m venv "$scratch/venv"
  python=$scratch/venv/bin/python
  install=("$python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt)
  "${install[@]}" torch==2.13.0+cpu 2>/dev/null || "${install[@]}" torch
  "${install[@]}" "$(echo dist/*.whl)[build]"
  (
    cd "$scratch/empty"
    export OPTGEN_CACHE_DIR=$scratch/cache PYTHONPATH=. PYTHONWARNINGS="ignore:Failed to initialize NumPy"
    "$python" -P "$checkout/release/try_wheel.py"
  )
  rm -r "$scratch/empty" "$scratch/venv" "$scratch/cache"
  tested=$((tested + 1))
done
[ "$tested" -gt 0 ] || { echo "no supported Python ($(echo $versions)) is on this machine" >&2; exit 1; }

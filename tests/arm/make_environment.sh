#!/bin/sh
# Make a folder in which an aarch64 Python with torch runs under emulation:
#     make_environment.sh FOLDER PYTHON TORCH DEBIAN
# PYTHON is this machine's, for pip. The emulated one is that of DEBIAN: 3.11 of bookworm, 3.13 of trixie.
# It needs debootstrap, aarch64-linux-gnu-g++, QEMU 10 and 1.5 GB. Nothing is installed on this machine.
set -eu
folder=$1 python=$2 torch=$3 debian=$4 here=$(dirname "$0") qemu=${QEMU:-qemu-aarch64-static}
case $debian in
    bookworm) version=3.11 ;;
    trixie) version=3.13 ;;
    *) echo "$debian: choose bookworm or trixie" >&2; exit 1 ;;
esac
for program in debootstrap dpkg-deb aarch64-linux-gnu-g++ "$qemu"; do
    if ! command -v "$program" > /dev/null; then
        echo "$program is missing (Debian: debootstrap, g++-aarch64-linux-gnu, qemu-user-static)" >&2
        exit 1
    fi
done
qemu_version=$("$qemu" --version | sed -nE '1s/.*version ([0-9]+).*/\1/p')
if [ "$qemu_version" -lt 10 ]; then
    echo "$qemu has version $qemu_version, in which importing torch fails: set QEMU to version 10" >&2
    exit 1
fi
mkdir -p "$folder"
if [ ! -x "$folder/root/usr/bin/python$version" ]; then
    # Only the first stage: packages are unpacked, and none of their scripts runs.
    debootstrap --arch=arm64 --foreign --variant=minbase \
        --include="python3,libpython$version,libgomp1,libstdc++6" "$debian" "$folder/root" > "$folder/root.log"
    for package in "$folder"/root/var/cache/apt/archives/*.deb; do
        dpkg-deb -x "$package" "$folder/root"
    done
fi
# torch's library of kernels reads the processor's identity from this file. It is of a Neoverse V1.
identity=$folder/root/sys/devices/system/cpu/cpu0/regs/identification
mkdir -p "$identity"
echo 0x00000000410fd401 > "$identity/midr_el1"
# Without dependencies: torch's would bring 3 GB of CUDA.
grep -v '^torch==' "$here/../../constraints.txt" > "$folder/constraints.txt"
"$python" -m pip install --quiet --disable-pip-version-check --upgrade --target "$folder/site" \
    --no-deps --only-binary=:all: --python-version "$version" \
    --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 \
    --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 \
    --constraint "$folder/constraints.txt" \
    "torch==$torch" numpy pytest pytest-xdist hypothesis expecttest filelock typing-extensions sympy \
    mpmath networkx jinja2 markupsafe fsspec iniconfig pluggy packaging execnet sortedcontainers \
    attrs setuptools pygments
"$python" "$here/no_cuda.py" "$folder/site/torch/lib" "$folder/cuda" aarch64-linux-gnu-gcc

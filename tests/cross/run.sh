#!/bin/sh
# Compile the kernels with clang for this machine and with a cross compiler for ARM, and compare what
# they compute with the library here: run.sh PYTHON. Warnings are errors. Fails without a compiler or
# qemu if CI is set.
set -eu
cd "$(dirname "$0")/../.."
for tool in clang++ aarch64-linux-gnu-g++ qemu-aarch64-static; do
  command -v "$tool" >/dev/null && continue
  echo "make cross needs $tool: apt-get install clang libomp-dev g++-aarch64-linux-gnu qemu-user-static" >&2
  if [ -n "${CI:-}" ]; then exit 1; else exit 0; fi
done
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
"$1" tests/cross/record.py "$out/calls"
compile() {
  "$@" -std=c++17 -O2 -Wall -Wextra -Werror -ffp-contract=fast -fno-math-errno -fno-trapping-math \
    -fopenmp -Isrc/statetrack/kernels '-DINTERFACE_HASH=""' -DLEVEL=baseline -DLANES=4 \
    csrc/*.cpp tests/cross/replay.cpp -o "$out/replay"
}
compile clang++
"$out/replay" "$out/calls"
compile aarch64-linux-gnu-g++
qemu-aarch64-static -L /usr/aarch64-linux-gnu "$out/replay" "$out/calls"

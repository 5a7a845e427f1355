#!/usr/bin/env bash
# Checks the models of NVIDIA's tensor cores. Builds a folder that runs on any x86-64 Linux machine with
# an NVIDIA GPU and its driver, and runs it there. README.md in this folder has the steps.
#   run.sh pack FOLDER [VECTORS.csv] [RECORDINGS]   on a machine with nvcc; at most 64 MiB
#   FOLDER/run.sh check OUT [OPTION...]             on the machine with the GPU
# `check` writes OUT/verify-hardware.json and .txt and ends with the exit code of `lockstep verify`: 3
# if no unit of a GPU ran.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

fail() { printf 'run.sh: %s\n' "$*" >&2; exit 2; }

pack() {
  [ $# -ge 1 ] || fail "pack FOLDER [VECTORS.csv] [RECORDINGS]"
  local root folder=$1 vectors=${2:-} recordings=${3:-} build library
  root=$(cd "$here/../.." && pwd)
  build=${LOCKSTEP_GPU_BUILD:-$root/build/gpu}
  [ ! -e "$folder" ] || fail "$folder: exists, must be a new folder"
  cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DLOCKSTEP_CUDA=ON >/dev/null
  ninja -C "$build" lockstep
  mkdir -p "$folder/lib" "$folder/libc"
  cp "$here/run.sh" "$folder/"
  strip -o "$folder/lockstep" "$build/lockstep"
  # The C library's parts are separate: they are used only if the machine's are too old.
  while read -r library; do
    case "${library##*/}" in
      ld-linux* | libc.so* | libm.so* | libdl.so* | libpthread.so* | librt.so*)
        cp -L "$library" "$folder/libc/" ;;
      *) cp -L "$library" "$folder/lib/" ;;
    esac
  done < <(ldd "$build/lockstep" | grep -o '/[^ ]*')
  if [ -n "$vectors" ]; then
    cp "$vectors" "$folder/vectors.csv"
    [ -z "$recordings" ] ||
      python3 "$here/recordings_to_csv.py" "$recordings" 1000000 >>"$folder/vectors.csv"
  fi
  local kilobytes limit=$((64 * 1024))
  kilobytes=$(du -sk "$folder" | cut -f1)
  echo "$folder: $kilobytes KiB"
  [ "$kilobytes" -le $limit ] || fail "$folder: $kilobytes KiB, must be at most $limit"
}

check() {
  [ $# -ge 1 ] || fail "check OUT [OPTION...]"
  local out=$1 options=() code=0
  shift
  mkdir -p "$out"
  export LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  local program=("$here/lockstep")
  if ! "${program[@]}" --version >/dev/null 2>&1; then
    program=("$here/libc/ld-linux-x86-64.so.2" --library-path "$here/libc:$LD_LIBRARY_PATH"
      "$here/lockstep")
    "${program[@]}" --version >/dev/null || fail "lockstep does not start with either C library"
  fi
  [ ! -f "$here/vectors.csv" ] || options=(--vectors "$here/vectors.csv")
  {
    nvidia-smi -L 2>/dev/null || echo "no nvidia-smi"
    "${program[@]}" verify --hardware "${options[@]}" --require "NVIDIA GPUs" \
      --json "$out/verify-hardware.json" --overwrite "$@" || code=$?
    echo "exit code $code"
  } >"$out/verify-hardware.txt" 2>&1
  cat "$out/verify-hardware.txt"
  return $code
}

case "${1:-}" in
  pack | check) "$@" ;;
  *) fail "pack FOLDER [VECTORS.csv] [RECORDINGS], or check OUT [OPTION...]" ;;
esac

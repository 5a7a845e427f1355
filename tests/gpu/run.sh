#!/usr/bin/env bash
# Everything that needs an NVIDIA GPU. Builds a folder that runs on any x86-64 Linux machine with a GPU
# and its driver, and runs it there. README.md in this folder has the steps.
#   run.sh pack FOLDER [VECTORS.csv] [RECORDINGS]   on a machine with nvcc; at most 64 MiB packed
#   FOLDER/run.sh check OUT [OPTION...]             on the machine with the GPU
# `check` writes to OUT
#   verify-hardware.json, .txt   tensor cores against their models; OPTIONs are this command's
#   tests.txt                    tests of the engine, and its kernels under compute-sanitizer
#   products.md                  cuBLAS's products against the models
#   lanes/, lanes.txt            lanes @cuda and their software lanes: run files, reports, differences
#   captures/                    networks trained by PyTorch on the GPU, if python3 has torch and h5py
# and ends with the exit code of `lockstep verify`: 3 if no unit of a GPU ran.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

fail() { printf 'run.sh: %s\n' "$*" >&2; exit 2; }

pack() {
  [ $# -ge 1 ] || fail "pack FOLDER [VECTORS.csv] [RECORDINGS]"
  local root folder=$1 vectors=${2:-} recordings=${3:-} build library program
  root=$(cd "$here/../.." && pwd)
  build=${LOCKSTEP_GPU_BUILD:-$root/build/gpu}
  [ ! -e "$folder" ] || fail "$folder: exists, must be a new folder"
  cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DLOCKSTEP_CUDA=ON >/dev/null
  ninja -C "$build" lockstep lockstep_gpu_products_tool test_cuda
  mkdir -p "$folder/lib" "$folder/libc"
  cp "$here/run.sh" "$folder/"
  for program in lockstep lockstep_gpu_products_tool test_cuda; do
    strip -o "$folder/$program" "$build/$program"
  done
  # The C library's parts are separate: they are used only if the machine's are too old.
  while read -r library; do
    case "${library##*/}" in
      ld-linux* | libc.so* | libm.so* | libdl.so* | libpthread.so* | librt.so*)
        cp -L "$library" "$folder/libc/" ;;
      *) cp -L "$library" "$folder/lib/" ;;
    esac
  done < <(ldd "$build/lockstep" | grep -o '/[^ ]*')
  # As in the repository, for captures.py.
  folder=$(cd "$folder" && pwd)
  (cd "$root" && cp --parents tests/gpu/captures.py examples/pytorch/{gpt,training_loop}.py "$folder")
  mkdir -p "$folder/python"
  cp -r "$root/python/lockstep_capture" "$folder/python/"
  if [ -n "$vectors" ]; then
    cp "$vectors" "$folder/vectors.csv"
    [ -z "$recordings" ] ||
      python3 "$here/recordings_to_csv.py" "$recordings" 1000000 >>"$folder/vectors.csv"
  fi
  local kilobytes limit=$((64 * 1024))
  kilobytes=$(tar -C "$folder" -cz . | wc -c | awk '{print int($1 / 1024)}')
  echo "$folder: $kilobytes KiB as .tar.gz"
  [ "$kilobytes" -le $limit ] || fail "$folder: $kilobytes KiB, must be at most $limit"
}

# Folders with cuBLAS: the toolkit's, and those of Python packages.
cublas_folders() {
  {
    find /usr/local/cuda*/ -name 'libcublasLt.so.1[23]' 2>/dev/null || true
    { python3 -c 'import sys; print("\n".join(sys.path))' 2>/dev/null || true; } |
      while read -r path; do find "$path/nvidia" -name 'libcublasLt.so.1[23]' 2>/dev/null || true; done
  } | xargs -r -d '\n' -n 1 dirname | sort -u | paste -sd :
}

# Lanes on the GPU and their software lanes, with cuBLAS's own choice of algorithms and without split-K.
run_lanes() {
  local out=$1 model run options policy presets="" one_chain="" code=0
  shift
  mkdir -p "$out"
  for policy in torch-autocast-fp16 torch-autocast-bf16 tf32 fp8-current; do
    printf 'extends = "%s"\n[cuda]\nsplit_k = false\n' $policy >"$out/$policy-one-chain.toml"
    presets+=,$policy@hopper,$policy@cuda
    one_chain+=,$out/$policy-one-chain.toml@hopper,$out/$policy-one-chain.toml@cuda
  done
  for model in lenet resnet20 gpt; do
    case $model in
      lenet) options=(--data synthetic:500 --steps 20 --batch 32) ;;
      resnet20) options=(--data shapes:100 --steps 3 --batch 8) ;;
      gpt) options=(--data grammar:20000 --steps 3 --batch 4 --size layers=2,width=128,context=64) ;;
    esac
    options+=(--twins 0 --quiet --overwrite)
    "$@" replay $model "${options[@]}" --lanes "fp32$presets" -o "$out/$model.h5" || code=$?
    "$@" replay $model "${options[@]}" --lanes "fp32$one_chain" -o "$out/$model-one-chain.h5" || code=$?
  done
  for run in "$out"/*.h5; do
    "$@" report "$run" -o "${run%.h5}.txt" --overwrite || code=$?
    echo
    section "Hardware compared with its model" <"${run%.h5}.txt"
    rm -f "$run".*
  done
  run_software_lanes "$out" "$@" || code=$?
  return $code
}

# Prints one section of a report: from its title to the next title, which is underlined, too.
section() {
  awk -v title="$1" '{ ends = shown && /^=+$/; if (shown && !ends && held != "") print held; if (ends) exit
                       held = shown ? $0 : ""; if ($0 == title) { shown = 1; getline } }
                     END { if (shown && !ends) print held }'
}

# Runs the same software lanes on the CPU and with the GPU's kernels, and compares all bits.
run_software_lanes() {
  local out=$1 device begin
  shift
  local options=(gpt --data grammar:20000 --steps 3 --batch 4 --size layers=2,width=128,context=64 --twins 0 --quiet --overwrite
    --lanes "fp32,torch-autocast-fp16@hopper,fp8-current@hopper,pure-fp16")
  for device in "" cuda; do
    begin=$(date +%s)
    "$@" replay "${options[@]}" ${device:+--software-device "$device"} -o "$out/software${device:+-$device}.h5" || return
    echo "software lanes on ${device:-the CPU}: $(($(date +%s) - begin)) s"
  done
  "$@" check "$out/software-cuda.h5" --baseline "$out/software.h5" --exact
}

# The tests that use a GPU where there is one; their kernels under compute-sanitizer, too.
test_engine() {
  local code=0 tool
  "$@" "$here/test_cuda" || code=$?
  if ! command -v compute-sanitizer >/dev/null; then
    echo "compute-sanitizer: not run: not on the PATH"
    return $code
  fi
  for tool in memcheck initcheck; do   # racecheck looks at shared memory, which no kernel has
    # initcheck does not see what cuBLAS's kernels write: only the project's own kernels run under it.
    local cases="*"
    [ $tool != initcheck ] || cases="model kernels*,*rounding*on a device*,*measuring alone*,*models' products*"
    echo "compute-sanitizer --tool $tool"
    "$@" compute-sanitizer --error-exitcode 1 --tool $tool "$here/test_cuda" -tc="$cases" || code=$?
  done
  return $code
}

check() {
  [ $# -ge 1 ] || fail "check OUT [OPTION...]"
  local out=$1 options=() code=0 cublas
  shift
  mkdir -p "$out"
  cublas=$(cublas_folders)
  local libraries="$here/lib${cublas:+:$cublas}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  local start=(env "LD_LIBRARY_PATH=$libraries")
  if ! "${start[@]}" "$here/lockstep" --version >/dev/null 2>&1; then
    start=("$here/libc/ld-linux-x86-64.so.2" --library-path "$here/libc:$libraries")
    "${start[@]}" "$here/lockstep" --version >/dev/null || fail "lockstep does not start with either C library"
  fi
  [ ! -f "$here/vectors.csv" ] || options=(--vectors "$here/vectors.csv")
  {
    nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null || echo "no nvidia-smi"
    "${start[@]}" "$here/lockstep" verify --hardware "${options[@]}" --require "NVIDIA GPUs" \
      --json "$out/verify-hardware.json" --overwrite "$@" || code=$?
    echo "exit code $code"
  } >"$out/verify-hardware.txt" 2>&1
  cat "$out/verify-hardware.txt"
  test_engine "${start[@]}" >"$out/tests.txt" 2>&1 || echo "tests: exit code $?"
  cat "$out/tests.txt"
  {
    "${start[@]}" "$here/lockstep_gpu_products_tool" "$out" && echo && echo "Without split-K:" &&
      mkdir -p "$out/without-split-k" &&
      "${start[@]}" "$here/lockstep_gpu_products_tool" --no-split-k "$out/without-split-k"
  } >"$out/products.md" 2>&1 || echo "products: exit code $?"
  cat "$out/products.md"
  run_lanes "$out/lanes" "${start[@]}" "$here/lockstep" >"$out/lanes.txt" 2>&1 || echo "lanes: exit code $?"
  cat "$out/lanes.txt"
  if python3 -c 'import h5py, torch; assert torch.cuda.is_available()' 2>/dev/null; then
    python3 "$here/tests/gpu/captures.py" "$out/captures" >"$out/captures.txt" 2>&1 || echo "captures: exit code $?"
    cat "$out/captures.txt"
  else
    echo "captures: not run: python3 has no torch with a GPU, or no h5py"
  fi
  return $code
}

case "${1:-}" in
  pack | check) "$@" ;;
  *) fail "pack FOLDER [VECTORS.csv] [RECORDINGS], or check OUT [OPTION...]" ;;
esac

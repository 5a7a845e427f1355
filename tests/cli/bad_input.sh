#!/usr/bin/env bash
# Every kind of bad input: exit code 2, a message on stderr that names value and hint, nothing written.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# be32 NUMBER...: 32-bit big-endian numbers, as IDX headers have them.
be32() {
  local n
  for n in "$@"; do
    printf "\\x$(printf %02x $((n >> 24 & 255)))\\x$(printf %02x $((n >> 16 & 255)))"
    printf "\\x$(printf %02x $((n >> 8 & 255)))\\x$(printf %02x $((n & 255)))"
  done
}
# write_idx FOLDER IMAGES LABEL: a t10k pair of 20 digits of 28x28 pixels; IMAGES bytes of pixels.
write_idx() {
  mkdir -p "$1"
  { be32 2051 20 28 28; head -c "$2" /dev/zero; } >"$1/t10k-images-idx3-ubyte"
  {
    be32 2049 20
    local i
    for i in $(seq 20); do printf "\\x$(printf %02x "$3")"; done
  } >"$1/t10k-labels-idx1-ubyte"
}
pixels=$((20 * 28 * 28))
quick=(--steps 2 --batch 4 --quiet)

# The good files first: what follows fails for the reason under test and no other.
write_idx good $pixels 3
expect 0 replay mlp --data mnist:good "${quick[@]}" -o good.h5

mkdir empty
expect 2 replay mlp --data mnist:empty "${quick[@]}" -o bad.h5
errs "t10k-images-idx3-ubyte"
expect 2 replay mlp --data mnist:no-such-folder "${quick[@]}" -o bad.h5
errs "no-such-folder"
write_idx truncated $((pixels - 1)) 3
expect 2 replay mlp --data mnist:truncated "${quick[@]}" -o bad.h5
errs "t10k-images-idx3-ubyte"
write_idx label $pixels 10
expect 2 replay mlp --data mnist:label "${quick[@]}" -o bad.h5
errs "label"
errs "10"

expect 2 replay lenett "${quick[@]}" -o bad.h5
errs "did you mean 'lenet'?"
expect 2 replay mlp --lanes fp32,torch-autocast-pf16 "${quick[@]}" -o bad.h5
errs "did you mean 'torch-autocast-fp16'?"
expect 2 replay mlp --lanes fp32,tf32@hoper "${quick[@]}" -o bad.h5
errs "hoper"
expect 2 replay mlp --lanes fp32,tf32,tf32 "${quick[@]}" -o bad.h5
errs "tf32"
expect 2 replay mlp --optimizer sdg "${quick[@]}" -o bad.h5
errs "did you mean 'sgd'?"
expect 2 replay mlp --steps 0 --batch 0 -o bad.h5
errs "steps 0"
errs "batch 0"
expect 2 replay -o bad.h5
errs "MODEL"
expect 2 explain lenet --policy torch-autocast-fp61
errs "did you mean"
expect 2 round 1.0 --format fp61
errs "did you mean"
expect 2 round one --format fp16x --rounding upwards
errs "not a number"
errs "fp16x"
errs "upwards"
expect 2 list format
errs "did you mean 'formats'?"
expect 2 list formats --markdown --json
expect 2 reply
errs "did you mean 'replay'?"
expect 2 replay mlp --no-such-option

cat >nothing.toml <<'TOML'
extends = "fp32"
[[rule]]
layer = "conv9"
compute = "fp16"
TOML
expect 2 replay mlp --lanes fp32,nothing.toml "${quick[@]}" -o bad.h5
errs "conv9"
cat >unknown.toml <<'TOML'
extends = "fp32"
[storage]
weight = "fp17"
TOML
expect 2 replay mlp --lanes fp32,unknown.toml "${quick[@]}" -o bad.h5
errs "fp17"

that test ! -e bad.h5

# Run files: not one, damaged, newer, existing.
echo "not HDF5" >text.h5
expect 2 report text.h5
errs "text.h5"
expect 2 report no-such.h5
errs "no-such.h5"
head -c 5000 good.h5 >cut.h5
expect 2 report cut.h5
errs "cut.h5"
expect 2 check good.h5 --baseline text.h5
errs "text.h5"
before=$(cksum <good.h5)
expect 2 replay mlp --data mnist:good "${quick[@]}" -o good.h5
errs "exists"
expect 2 recommend mlp
errs "lockstep replay mlp"
touch policy.toml
expect 2 recommend good.h5 -o policy.toml
errs "exists"
that test ! -s policy.toml
expect 2 recommend good.h5 --formats fp8
expect 2 report good.h5 --format html
errs "text only"
expect 2 report good.h5 -o good.h5
expect 2 replay --resume good.h5 -o other.h5
expect 2 replay --resume good.h5 --steps 5 --lr 0.1
errs "--steps"
errs "--lr"
expect 2 check good.h5 --baseline good.h5 --rel-tol nan
that test "$before" = "$(cksum <good.h5)"

# A file of a newer version: raise the format_version attribute.
python=${LOCKSTEP_PYTHON:-python3}
if "$python" -c 'import h5py' 2>/dev/null; then
  cp good.h5 newer.h5
  "$python" - <<'PY'
import h5py
with h5py.File("newer.h5", "r+") as file:
    old = file.attrs["format_version"]
    file.attrs["format_version"] = type(old)(old + 1)
PY
  expect 2 report newer.h5
  errs "version"
  expect 2 replay --resume newer.h5
  errs "version"
else
  echo "SKIPPED: 2 checks of a newer run file ($python has no h5py); tests/record has them too"
fi
finish

#!/usr/bin/env bash
# Every kind of bad input: exit code 2, a message on stderr with value and hint, and no file written.
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

# Good files first, so that the cases below fail only for the reason under test.
write_idx good $pixels 3
expect 0 replay mlp --data mnist:good "${quick[@]}" -o good.h5

mkdir empty
expect 2 replay mlp --data mnist:empty "${quick[@]}" -o bad.h5
errs "t10k-images-idx3-ubyte"
expect 2 replay mlp --data mnist:no-such-folder "${quick[@]}" -o bad.h5
errs "no-such-folder"
write_idx truncated $((pixels - 1)) 3
expect 2 replay mlp --data mnist:truncated "${quick[@]}" -o bad.h5
errs "needs 15696 bytes, found 15695"
write_idx label $pixels 10
expect 2 replay mlp --data mnist:label "${quick[@]}" -o bad.h5
errs "label 10 at index 0"

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
expect 2 replay mlp --seeds 0 --twins 100 -o bad.h5
errs "--seeds 0: a whole number, 1 <= N <= 1000"
errs "--twins 100: a whole number, 0 <= N <= 99"
expect 2 replay mlp --seeds 2 --mode synced "${quick[@]}" -o bad.h5
errs "--seeds 2: in synced mode no outcome is judged"
expect 2 replay mlp --seed 18446744073709551615 --seeds 2 "${quick[@]}" -o bad.h5
errs "the last seed is beyond 18446744073709551615"
expect 2 report good.h5 --seed 2
errs "no seed 2; it holds 1"
expect 2 replay -o bad.h5
errs "MODEL"
expect 2 explain lenet --policy fp32 --backward per-loss
errs "named here: none"
expect 2 replay detector --backward each -o never.h5
errs "joint"
expect 2 explain lenet --policy nvfp4-bf16-ends
errs "blocks are numbered modules"
expect 2 explain resnet20 --policy deepseek-v3
errs "rules exclude every linear of the model"
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
expect 2 replay mlp --stepz 4 --no-such-option
errs "lockstep: replay: 3 problems"
errs "did you mean '--steps'?"
errs "'--no-such-option': unknown"
expect 2 check good.h5
errs "--baseline: missing"

# Numbers out of range, options that would be ignored, empty arguments: all reported at once.
expect 2 replay mlp --seed -1 --steps 99999999999999999999 --batch 1e3 --threads 0 --mode fre \
  --lr fast --lanes fp32,,tf32 --momentum 0.5 --optimizer adam -o bad.h5
for text in "--seed -1: a whole number, 0 <= N <= 2^64-1" \
  "--steps 99999999999999999999: a whole number, 1 <= N <= 2^63-1" \
  "--batch 1e3: a whole number" "--threads 0: a whole number, 1 <= N <= 256" \
  "did you mean 'free'?" "--lr fast: a number required" "--lanes fp32,,tf32: a name" \
  "--momentum 0.5: only sgd, rmsprop and muon have it"; do
  errs "$text"
done
expect 2 replay mlp --seed 18446744073709551616 -o bad.h5
errs "--seed 18446744073709551616: a whole number"
expect 2 replay mlp --optimizer sgd --beta1 0.5 --eps 1e-3 -o bad.h5
errs "--beta1 0.5: only adam, adamw, lion and adafactor-transformers have it"
errs "--eps 1e-3: only adam, adamw, adagrad, rmsprop and muon have it"
for option in --data -o --lanes --simd; do
  expect 2 replay mlp $option ""
  errs "'': empty, a word required"
done
that test ! -e run.h5
expect 2 round 1.0 --format fp16 --random 4294967296
errs "2^32-1"
expect 2 round 1.0 --format e9m3
errs "e9m3"

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
expect 2 check good.h5 --baseline text.h5 --exact
errs "text.h5"
before=$(cksum <good.h5)
expect 2 replay mlp --data mnist:good "${quick[@]}" -o good.h5
errs "exists"
expect 2 replay lenett "${quick[@]}" -o good.h5
errs "exists"
errs "did you mean 'lenet'?"
expect 2 recommend mlpp
errs "mlpp"
expect 2 recommend mlp --steps 0 --budget x --data synthetic:200
errs "--steps"
errs "--budget"
touch policy.toml
expect 2 recommend good.h5 -o policy.toml
errs "exists"
that test ! -s policy.toml
expect 2 recommend good.h5 --formats fp8
expect 2 report good.h5 --format xml
errs "text, json, html, markdown or csv"
expect 2 report good.h5 --format text -o r.html
errs "this would be text"
# Standard output, where a file or a folder is needed.
expect 2 replay mlp "${quick[@]}" -o -
errs "-o -: is standard output, a file required; -o FILE"
expect 2 report good.h5 -o - --format csv
errs "--table NAME for one of them"
expect 2 verify --hardware --json -
errs "--json -: is standard output, a file required; --json FILE"
for option in -o "--emit pytorch" --report; do
  expect 2 recommend good.h5 $option -
  errs "$option -: is standard output, a file required; $option FILE"
  that test "$(grep -c "ends in\|ending" err.txt)" = 0
done
expect 2 recommend good.h5 --emit-pytorch amp.py
errs "--emit-pytorch amp.py: is now --emit KIND FILE; --emit pytorch amp.py"
expect 2 explain mlp --policy mxfp8 --emit torcho amp.py
errs "--emit 'torcho': unknown; did you mean 'torchao'?"
expect 2 explain mlp --policy mxfp8 --emit torchao
errs "--emit: KIND FILE required, 1 given"
cp good.h5 kept.svg
expect 2 explain mlp --policy mxfp8 --svg kept.svg
errs "kept.svg"
errs "--overwrite"
that cmp -s good.h5 kept.svg
expect 2 explain mlp --policy mxfp8 --svg picture.png
errs "--svg picture.png: a name that ends in .svg required"
expect 2 explain mlp --policy mxfp8 --emit torchao same.py --emit fsdp2 same.py
errs "same.py"
that test ! -e same.py
expect 2 replay mlp "${quick[@]}" --at fc1:y --save-values - -o saved.h5
errs "--save-values -: is standard output, a file required; --save-values FILE"
expect 2 baseline record mlp -o -
errs "-o -: is standard output, a file required; -o FILE"
that test ! -e ./-
# A file that is no baseline is refused with the other mistakes, before any run.
echo notes >notes.json
expect 2 baseline record mlp -o notes.json --overwrite --reason try --seeds 2
errs "notes.json"
errs "--seeds 2"
that test "$(cat notes.json)" = notes
# Text never replaces a run: not another run, not through a link, not with --overwrite.
cp good.h5 other.h5
ln -s good.h5 link.toml
cp good.h5 run.toml
for output in good.h5 other.h5 link.toml; do
  expect 2 report good.h5 -o $output
  expect 2 report good.h5 -o $output --overwrite
  errs "HDF5"
  expect 2 baseline record mlp -o $output --overwrite --reason try
  errs "HDF5"
  expect 2 baseline record mlp -o $output
  errs "HDF5"
  that test "$(grep -c exists err.txt)" = 0
done
for output in link.toml run.toml; do
  expect 2 recommend good.h5 -o $output --overwrite
  errs "HDF5"
done
expect 2 recommend good.h5 -o good.h5 --overwrite
expect 2 recommend good.h5 -o policy.txt
errs "ends in .toml"
that test ! -e policy.txt
that cmp good.h5 other.h5
that cmp good.h5 run.toml
# A run never replaces a capture, which may be expensive: not even with --overwrite.
printf 'LOCKSTEP-CAPTURE and more' >capture.h5
for model in mlp capture.h5; do
  expect 2 replay $model --steps 1 -o capture.h5 --overwrite
  errs "capture.h5: is a capture"
done
that test "$(wc -c <capture.h5)" -eq 25
expect 2 replay capture.h5 --seeds 2 -o bad.h5
errs "--seeds 2: a capture has the weights and batches of one run"
expect 2 verify capture.h5 --only F16C --seed 3
errs "--only: an option of --hardware"
errs "--seed: an option of --hardware"
that test -L link.toml
expect 2 report good.h5 -o policy.toml
errs "exists"
that test ! -s policy.toml
expect 2 report good.h5 -o empty
errs "folder"
for command in "replay mlp ${quick[*]}" "report good.h5" "recommend good.h5"; do
  # A file as a folder: an error of the system, in words.
  expect 2 $command -o text.h5/x.toml
  errs "text.h5/x.toml"
  that test -z "$(grep internal err.txt)"
done
if [ -w /dev/full ]; then
  for command in "list" "report good.h5" "--help"; do
    checks=$((checks + 1))
    code=0
    "$program" $command >/dev/full 2>err.txt || code=$?
    [ $code = 2 ] || problem "exit code $code, not 2: $command >/dev/full"
    errs "standard output: cannot be written"
  done
else
  echo "SKIPPED: 6 checks of a full standard output (no /dev/full)"
fi
expect 2 replay --resume good.h5 -o other.h5
expect 2 replay --resume good.h5 --steps 5 --lr 0.1
errs "--steps"
errs "--lr"
expect 2 check good.h5 --baseline good.h5 --exact --rel-tol nan
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

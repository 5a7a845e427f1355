#!/usr/bin/env bash
# Each command works, from a run to a policy and back, with the right exit codes.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

run=(replay mlp --data synthetic:200 --steps 12 --batch 8 --lanes fp32,torch-autocast-fp16,pure-fp16)
expect 0
says "lockstep demo"
expect 0 --version
says "lockstep 0."
touch taken
expect 2 demo -o taken   # .ci/try_wheel runs the demo
errs "-o taken: cannot be made"

expect 0 "${run[@]}" -o a.h5
says "Verdict"
says "lockstep report a.h5"
errs "step 12/12"
expect 0 "${run[@]}" -o b.h5 --threads 1 --simd scalar --quiet
that test ! -s err.txt
that test ! -s out.txt

expect 0 report a.h5
for part in Verdict Lanes pure-fp16 "Loss scale" "layer by layer" "${run[0]} ${run[1]}"; do
  says "$part"
done
cp out.txt shown.txt
expect 0 report a.h5 -o report.txt
that cmp -s shown.txt report.txt
expect 0 report a.h5 -o -
that cmp -s shown.txt out.txt
expect 0 report a.h5 -o - --format json
that test "$(head -c 1 out.txt)" = "{"
expect 0 report a.h5 -o - --table lanes
that grep -q pure-fp16 out.txt
that test ! -e ./-
echo old >report.txt
expect 0 report a.h5 -o report.txt --overwrite
that cmp -s shown.txt report.txt

expect 0 check b.h5 --baseline a.h5 --exact
says "PASS"
expect 0 check b.h5 --baseline a.h5 --exact --strict
expect 0 "${run[@]}" --seed 2 -o seed.h5 --quiet
expect 3 check seed.h5 --baseline a.h5 --exact
says "INCONCLUSIVE"
says "seed"
expect 0 replay mlp --data synthetic:200 --steps 12 --batch 8 --quiet -o fewer.h5
expect 3 check fewer.h5 --baseline a.h5 --exact
says "INCOMPLETE"
says "lane pure-fp16"

expect 0 recommend a.h5 -o policy.toml
says "Ranges for fp16"
# The printed next step is the same run with the policy; it runs unchanged.
next=$(sed -n '/^  lockstep replay/,$p' out.txt | tr -d '\\\n')
for option in "replay mlp" "--data synthetic:200" "--steps 12" "--batch 8" "--lanes fp32,policy.toml"; do
  that grep -qF -- "$option" <<<"$next"
done
read -ra words <<<"$next"
expect 0 "${words[@]:1}" --quiet
that test -s verify.h5
expect 0 replay mlp --data synthetic:200 --steps 2 --batch 4 --seed 18446744073709551615 --mode synced \
  --optimizer adam --lr 0.002 --beta1 0.8 --eps 1e-6 --weight-decay 0.01 --eval-every 1 --eval-examples 7 \
  --histogram-every 2 --quiet -o adam.h5
expect 0 recommend adam.h5 -o adam.toml
for option in "--seed 18446744073709551615" "--mode synced" "--optimizer adam" "--lr 0.002" \
  "--beta1 0.8" "--eps 1e-06" "--weight-decay 0.01" "--eval-every 1" "--eval-examples 7" "--histogram-every 2"; do
  says "$option"
done
that test "$(sed -n '/^  lockstep replay/,$p' out.txt | awk '{print length}' | sort -n | tail -1)" -le 100
expect 0 explain mlp --policy policy.toml
says "fp16"
# The recipe of each product, as a table, as JSON and as a picture.
expect 0 explain gpt --size layers=7 --policy nvfp4-bf16-ends --svg recipe.svg
says "E4M3 under FP32  stochastic    Hadamard 16"
says "h.0.attn.qkv and 19 more"
that grep -q "<svg .*linear layers under nvfp4-bf16-ends:1" recipe.svg
that grep -q "w: fp4_e2m1" recipe.svg
expect 0 explain gpt --policy deepseek-v3 --json
says '"sum": "hopper_fp8 per 128, added in fp32"'
expect 0 replay mlp --data synthetic:200 --steps 3 --batch 8 --lanes fp32,policy.toml -o v.h5 --quiet
expect 0 replay mlp --data synthetic:200 --steps 3 --batch 8 --lanes tf32 -o v.h5 --overwrite --quiet

# Twins run by default where outcomes are judged; seeds are runs of their own in one file.
lanes_of() { h5ls "$1/lanes" | awk '{print $1}' | paste -sd,; }
quick=(--data synthetic:100 --steps 2 --batch 4)
expect 0 replay mlp "${quick[@]}" --lanes tf32 --seeds 2 --seed 5 -o seeds.h5
errs "seed 2/2: synthetic"
errs "seed 2/2 step 2/2"
says "Recorded 2 steps from each of 2 seeds in seeds.h5."
expect 0 report seeds.h5 --seed 6 --format json
says '"findings_seed": 6'
expect 0 replay --resume seeds.h5
says "seeds.h5 is complete: all 2 steps from each of 2 seeds"
expect 0 replay mlp "${quick[@]}" --lanes tf32,twin2 --twins 3 -o three.h5 --quiet
expect 0 replay mlp "${quick[@]}" --lanes tf32 --twins 0 -o none.h5 --quiet
expect 0 replay mlp "${quick[@]}" --lanes tf32,twin -o named.h5 --quiet
expect 0 replay mlp "${quick[@]}" --lanes tf32 --mode synced -o synced.h5 --quiet
expect 0 replay mlp "${quick[@]}" -o alone.h5 --quiet
if command -v h5ls >/dev/null; then
  that test "$(lanes_of seeds.h5)" = fp32,tf32,twin
  that test "$(lanes_of seeds.h5/seeds/6)" = fp32,tf32,twin
  that test "$(lanes_of three.h5)" = fp32,tf32,twin,twin2,twin3
  that test "$(lanes_of none.h5)" = fp32,tf32
  that test "$(lanes_of named.h5)" = fp32,tf32,twin
  that test "$(lanes_of synced.h5)" = fp32,tf32
  that test "$(lanes_of alone.h5)" = fp32
fi

expect 0 round 0.1 --format fp16
says "0 01011 1001100110"
says "0.0999755859375"
expect 0 round -1e-9 --format fp16
says "underflow to zero"
expect 0 round 1e5 --format fp16
says "overflow"
expect 0 round 300 --format e4m3
says "fp8_e4m3"

expect 0 list
topics=$(awk '{print $1}' out.txt)
that test "$(wc -w <<<"$topics")" -ge 10
for topic in $topics; do
  expect 0 list "$topic"
  that test "$(wc -l <out.txt)" -ge 2
  expect 0 list "$topic" --markdown
  that grep -q '^|---|\|^```$' out.txt  # a table, or drawings
  expect 0 list "$topic" --json
  that test "$(head -c 1 out.txt)" = "["
done
finish

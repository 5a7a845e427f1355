#!/usr/bin/env bash
# `lockstep list`: one row only, and accumulators with their drawings.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

expect 0 list accumulators hopper_fp16
says "hopper_fp16"
says "2^(E-25)"
says "k = 0 to 15 with c"
says "recorded: H100 through WMMA"
says 'of an H100, 10^9 random dot products each'
that test "$(grep -c '2^(E-' out.txt)" = 1
expect 0 list accumulators hopper_fp16+no_floor
says "hopper_fp16+no_floor"
that test "$(grep -c 'at least -133' out.txt)" = 0
expect 0 list accumulators
says "recorded: V100"
that test "$(grep -c '2^(E-' out.txt)" = 0
expect 0 list accumulators --json
says '"picture": '
expect 0 list pictures
says "ampere_fp16, "
says "--odd--> s"
expect 0 list pictures --markdown
says '**avx512_bf16**'
expect 0 list formats fp16
says "65504"
that test "$(grep -c bf16 out.txt)" = 0
expect 0 list scalers --markdown
says "hysteresis=2, consecutive_hysteresis=false"
says "| flax | unscaled gradients |"
expect 0 list gpus h100 --json
says '"fp8": "1979"'
says '"mxfp8": ""'
says "H100 datasheet"

expect 0 list check-keys --schema
says '"const": "lockstep-check"'
expect 0 list check-keys
says '`ALARM.sentence`'
expect 2 list formats --schema
errs "a topic that ends in -keys"
expect 2 list accumulators hoper_fp16
errs "did you mean 'hopper_fp16'?"
expect 2 list accumulators hopper_fp16+emin_floor
errs "unknown switch 'emin_floor'"
expect 2 list formats fp17
errs "did you mean 'fp16'?"
finish

#!/usr/bin/env bash
# `lockstep round`: one number by field and under every rounding, and blocks; rejected input.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

expect 0 round 0.1 --format fp16
says "as fp64       0.1000000000000000055511151231257827021181583404541015625 = 0x1.999999999999ap-4"
says "0 01011 1001100110 = 0x2e66"
says "| |     fraction: 614/1024"
says "exponent: 11 - 15 = -4"
says "-0.4000 ulp (1 ulp = 6.10352e-05)"
says "next above    0.10003662109375"
says "> nearest_even       0x2e66"
says "up                 0x2e67  0.10003662109375              +0.6000 ulp"
says "stochastic         0x2e66  0.0999755859375               -0.4000 ulp  60.000 %"
expect 0 round 1 --format fp16
that test -z "$(grep roundings out.txt)"   # exact: every rounding gives the same
says "0 (exact)"
expect 0 round 65520 1e-6 --format fp16+flush_out+saturate
says "saturated to it"
says "flushed to zero: fp16+saturate+flush_out keeps no numbers below 2^-14"
says "next above    6.103515625e-05 = 0x1p-14"
expect 0 round 465 --format fp8_e4m3 --rounding stochastic --random 4294967295
says "value         448"
says "> stochastic           0x7e"
says "53.125 %"
expect 0 round --format bf16 -- -inf
says "with fraction 0 infinity"
expect 0 round nan --format fp4_e2m1
says "has no NaN"

# A decimal is rounded once: this one is above a tie, and its nearest double is that tie. Only zero
# counts as zero.
expect 0 round 1.00048828125000000001 --format fp16
says "0x3c01"
says "error         0.000488281 = +0.5000 ulp"
expect 0 round 1.00048828125 --format fp16
says "0x3c00"
expect 0 round 1e-400 --format fp16 --rounding up
says "value         5.9604644775390625e-08"
says "-0.0000 ulp"
expect 0 round --format fp64 --rounding down -- -1e-400
says "value         -4.9406564584124654e-324"
expect 0 round 0x1.8000000000000000001p-25 --format fp16
says "value         5.9604644775390625e-08"
expect 0 round 0.1 --format fp64
says "+0.4000 ulp"
expect 0 round 0e999999999999999999999 -0 --format fp16
says "0 (exact)"
expect 2 round 1e400 --format fp16
errs "beyond FP64's largest"

# The same word as in lockstep dot: an integer in hexadecimal is a storage word.
expect 0 round 0x3c00 --format fp16
says "read as       storage word of fp16: 1 = 0x1p+0"
expect 0 round 0x7c01 --format fp16
says "storage word of fp16: a NaN"
expect 0 round 0x3c00p0 --format fp32
says "value         15360"
expect 2 round 0x13c00 --format fp16
errs "must be hexadecimal digits of 16 bits (fp16)"
expect 2 round 0x3c --format mxfp8
errs "0x3cp0 is the number"

expect 0 round 0.1 --format fp16 --rounding stochastic
that test "$(head -1 out.txt)" = "0.1 in fp16, stochastic, random bits 0x00000000"
# The code of -0 is the one NaN.
expect 0 round nan --format fp8_e4m3fnuz
says "this is the code of -0: NaN"
says "sign: -"
expect 0 round --format fp8_e4m3fnuz -- -0
says "fp8_e4m3fnuz has no -0: its code is the NaN's"

expect 0 round 7 -2.5 0.2 0.25 --format mxfp4
says "4 values as one block of mxfp4, nearest_even"
says "amax          7 = 1.75 * 2^2"
says "scale         01111111 = 0x7f: 2^(127 - 127) = 2^0"
says "0 11 1           6                 6   -0.5000 ulp  saturated"
says "4.25 bits per element"
expect 0 round 7 -2.5 0.2 0.25 --format mxfp4+rceil
says "2^(128 - 127) = 2^1"
says "the least power of two"
expect 0 round 1 nan --format mxfp8_e5m2
says "0xff: NaN, because the block holds a NaN or an infinity"
expect 0 round 0 -0 --format mxfp8
says "0x00: 2^(0 - 127) = 2^-127, the smallest: the block is all zeros"
expect 0 round 3 1 0.2 -4 --format nvfp4
says "tensor scale  amax / (448 * 6) = 0.00148809527, with these values as the tensor"
says "01111110 = 0x7e: e4m3(amax / 6 / tensor scale) = 448"
expect 0 round 3 --format nvfp4 --tensor-scale 0.5
says "tensor scale  0.5"
for line in "round 0.1 -1e-42 --format fp8_e5m2+saturate+flush_in" "round 1e-30 7 --format mxfp8+nan"; do
  expect 0 $line
  that test "$(awk '{print length}' out.txt | sort -n | tail -1)" -le 100
done

expect 2 round 1 --format mxfp9
errs "did you mean 'mxfp8'?"
expect 2 round 1 --format fp4
errs "did you mean 'fp4_e2m1'?"
expect 2 round 1 --format mxfp4+flor
errs "did you mean 'floor'?"
expect 2 round 1 --format nvfp4+ceil
errs "scale rules are for power-of-two scales"
expect 2 round 1e99 x --format mxfp4 --tensor-scale -2 --rounding up
for text in "beyond FP32's largest" "value 'x': not a number" "mxfp4 has none" "a number > 0"; do
  errs "$text"
done
expect 2 round 1 --format fp16 --tensor-scale 3
errs "only block formats"
expect 2 round $(seq 33) --format mxfp4
errs "33 values: a block of mxfp4 holds at most 32"
finish

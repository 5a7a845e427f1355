#!/usr/bin/env bash
# `lockstep dot`: a block, a chain, a file of dot products; what it refuses.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# One block: E = 0 and F = 25, so 2^-14 * 2^-14 lies below the grid.
expect 0 dot 1,-1,0x1p-14 1,1,0x1p-14 --accumulator hopper_fp16
says "factors fp16, sum fp32"
says "block 0: largest exponent 0, so terms are cut to multiples of 2^-25"
says "      k=0                         1         0        33554432  -"
says "      k=2    3.7252902984619141e-09       -28               0  3.72529e-09"
says "    leaves as 0"
says "result  0 = 0x0p+0"
says "exact   3.7252902984619141e-09"
says "error   -3.72529e-09"
# Two blocks of 16, the addend a term of the first.
ones=$(printf '1,%.0s' $(seq 16))1
expect 0 dot "$ones" "$ones" 3 --accumulator hopper_fp16
says "        c                         3         1"
says "    leaves as 19"
says "block 1:"
says "result  20 = 0x1.4p+4"
says "error   0 (exact)"
expect 0 dot 448 448 1 --accumulator hopper_fp8_promoted --format fp8_e4m3
says "every 128 products"
says "result  200705"
expect 0 dot inf 0 --accumulator hopper_fp16
says "block 0: an infinity or a NaN takes part -> nan"
says "0x7fc00000"
expect 0 dot 0,0 0,1 --accumulator hopper_fp16
says "block 0: nothing but zeros -> 0"

# Chains: storage words, FP16 addition of 2^-11 to 1 (a tie to even), pairs.
expect 0 dot 0x3c00,0X1000 0x3C00,0x3c00 --accumulator fp16
says "        0                         1                         1"
says "        1             0.00048828125                         1"
says "result  1 = 0x1p+0"
says "0x3c00)"
says "error   -0.000488281 = -0.5 ulp of fp16"
expect 0 dot 1,2,3 1,1,1 --accumulator avx512_bf16
says "        0                         1                          "
says "        1                         2                         3"
says "        2                         3                         6"
# The bits of this TF32 register that hardware ignores make the difference between NaN and infinity.
expect 0 dot 0x7f800001 0x3f800000 --accumulator hopper_tf32
says "result  inf"

# C is a number of the sum's own format: 0.1 in FP64, not narrowed to FP32.
expect 0 dot 1 1 0.1 --accumulator fp64_fused
says "result  1.1000000000000001 = 0x1.199999999999ap+0"
says "error   8.32667e-17 = 0.375 ulp of fp64"
that test ! -s err.txt
expect 0 dot 0.1 3 --accumulator fp16
errs "note: A: 0.1 is no value of fp16, rounded to 0.0999755859375"
says "exact   0.2999267578125"

cat >rows.csv <<'ROWS'
id,a,b,c,d
good,3c00,3c00,3f800000,40000000
wrong,3c00 4000,3c00 3c00,,40000000
open,bc00,3c00,,
ROWS
expect 1 dot --csv rows.csv --accumulator hopper_fp16
says "id,accumulator,result,d,same"
says "good,hopper_fp16,40000000,40000000,yes"
says "wrong,hopper_fp16,40400000,40000000,no"
says "open,hopper_fp16,bf800000,,"
errs "3 rows, 2 with a result to compare with, 1 mismatches"
expect 1 dot --csv rows.csv --accumulator hopper_fp16 --quiet
that test "$(cat out.txt)" = "wrong,hopper_fp16,40400000,40000000,no"
sed -i /wrong/d rows.csv
expect 0 dot --csv rows.csv --accumulator hopper_fp16 --quiet
that test ! -s out.txt
errs "2 rows, 1 with a result to compare with, 0 mismatches"

expect 2 dot 1,zero 1,0x12345 0x --accumulator hopper_fp16
errs "3 problems"
errs "'zero'"
errs "word '0x12345': must be hexadecimal digits of 16 bits (fp16)"
errs "word '0x': must be hexadecimal digits of 32 bits (fp32)"
expect 2 dot 1,2 1 --accumulator hopper_fp16
errs "A has 2 factors and B has 1: must be equally many"
expect 2 dot 1 1 1,2 --accumulator hopper_fp16
errs "C '1,2': must be one number"
expect 2 dot 1 1 --accumulator hopper_fp8
errs "takes fp8_e4m3, fp8_e5m2; choose one of them with --format"
expect 2 dot 1 1 --accumulator hopper_fp8 --format bf16
errs "not bf16"
expect 2 dot 1 1 --accumulator hopper_fp17
errs "did you mean 'hopper_fp16'?"
expect 2 dot
errs "A and B required"
errs "--accumulator required"
expect 2 dot 1 1 --csv rows.csv --accumulator hopper_fp16
errs "A and --csv"
expect 2 dot --csv rows.csv
for column in type_ab arch instr acc; do errs "no column '$column'"; done
expect 2 dot --csv missing.csv --accumulator hopper_fp16
errs "missing.csv"
finish

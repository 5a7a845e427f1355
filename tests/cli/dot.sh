#!/usr/bin/env bash
# `lockstep dot`: a block, a chain, a file of dot products; rejected input.
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
# Two blocks of 16; the addend is a term of the first.
ones=$(printf '1,%.0s' $(seq 16))1
expect 0 dot "$ones" "$ones" 3 --accumulator hopper_fp16
says "        c                         3         1"
says "    leaves as 19"
says "block 1:"
says "result  20 = 0x1.4p+4"
says "error   0 (exact)"
expect 0 dot 448 448 1 --accumulator hopper_fp8_promoted --format fp8_e4m3
says "after 128 products: running sum 1 + partial sum 200704 -> 200705, by an IEEE addition"
says "result  200705"
expect 0 dot inf 0 --accumulator hopper_fp16
says "block 0: a term is an infinity or NaN -> nan"
says "0x7fc00000"
says "0x7fffffff on the chip"
expect 0 dot 0,0 0,1 --accumulator hopper_fp16
says "block 0: all terms are zero -> 0"

# Chains: storage words, FP16 addition of 2^-11 to 1 (a tie to even), pairs.
expect 0 dot 0x3c00,0X1000 0x3C00,0x3c00 --accumulator fp16
says "acc = acc + a[0] * b[0]                         1                         1"
says "acc = acc + a[1] * b[1]             1.00048828125                         1"
says "result  1 = 0x1p+0"
says "0x3c00)"
says "error   -0.000488281 = -0.5 ulp of fp16"
expect 0 dot 1,2,3 1,1,1 --accumulator avx512_bf16
that test "$(grep -c '^ *\(t\|acc\) = ' out.txt)" = 4
that test "$(sed -n 's/^ *\(t\|acc\) = .*a\[\(.\)\].*/\1\2/p' out.txt | tr -d '\n')" = t1acc0t3acc2
expect 0 dot 1,2,3,4 1,1,1,1 0.5 --accumulator amx_bf16
that test "$(grep -c ' 3\.5$' out.txt)" = 0   # no register ever holds c + 1 + 2
says "both = even + odd "
expect 0 dot inf 0 --accumulator fp32_fused
that test "$(grep -c -- -nan out.txt)" = 0
# In this TF32 register, the bits that hardware ignores decide between NaN and infinity.
expect 0 dot 0x7f800001 0x3f800000 --accumulator hopper_tf32
says "result  inf"
# A decimal is an FP32 register: the unit truncates it, or rounds it under a switch.
expect 0 dot 1.00146484375 1 --accumulator hopper_tf32
says "result  1.0009765625 "
errs "the unit reads the FP32 register 1.00146484375 as 1.0009765625"
expect 0 dot 0x3f803000 1 --accumulator hopper_tf32
says "result  1.0009765625 "
expect 0 dot 1.00048828125 1 --accumulator hopper_tf32+nearest_away
says "result  1.0009765625 "
expect 0 dot 1.00048828125 1 --accumulator hopper_tf32+nearest_even
says "result  1 "
expect 0 dot 1.00048828125 1 --accumulator fp32_fused --format tf32
errs "1.00048828125 is not a value of tf32, rounded to 1.0009765625"

# Decimals are rounded once; ulps are those of the sum's own format; FP8 formats may be mixed.
expect 0 dot 1.00048828125000000001 1 --accumulator fp16
says "0x3c01"
expect 0 dot 448,448,0.001953125 448,1,1 1 --accumulator hopper_fp8 --format fp8_e4m3
says "ulp of e8m13"
expect 0 dot 448,0.015625 57344,0.25 --accumulator hopper_fp8 --format fp8_e4m3,fp8_e5m2
says "factors fp8_e4m3 and fp8_e5m2"
says "result  25690112 "
expect 2 dot 448 57344 --accumulator hopper_fp8 --format fp8_e4m3,fp8_e5m2,fp8_e5m2
errs "must be one format or two"

# C is a number of the sum's own format: 0.1 in FP64, not narrowed to FP32.
expect 0 dot 1 1 0.1 --accumulator fp64_fused
says "result  1.1000000000000001 = 0x1.199999999999ap+0"
says "error   8.32667e-17 = 0.375 ulp of fp64"
that test ! -s err.txt
expect 0 dot 0.1 3 --accumulator fp16
errs "note: A: 0.1 is not a value of fp16, rounded to 0.0999755859375"
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

# NaN: the words as they were read, and the one NaN of the chips.
cat >nan.csv <<'ROWS'
id,arch,instr,type_a,type_b,acc,a,b,c,d
chip,volta,mma.m8n8k4,f16,f16,f32,7e00,3c00,,7fffffff
other,volta,mma.m8n8k4,f16,f16,f32,7e00,3c00,,7fc00000
half,hopper,mma.sync.m16n8k32,e4m3,e5m2,f16,7f,3c,,7fff
mma,hopper,mma.m16n8k32,e4m3,e4m3,f32,38 08,38 08,,
wmma,hopper,wmma.m16n16k8,tf32,tf32,f32,3f800000 33800000,3f800000 3f800000,,
ROWS
expect 1 dot --csv nan.csv
says "chip,volta_fp16,7fffffff,7fffffff,yes"
says "other,volta_fp16,7fffffff,7fc00000,no"
says "half,hopper_fp8_mma_acc16,7fff,7fff,yes"
says "mma,hopper_fp8_mma,"
says "wmma,hopper_tf32_wmma,"
sed 's/mma.m16n8k32,e4m3/rubbish,e4m3/; s/,7fc00000$/,7fc0/' nan.csv >bad.csv
expect 2 dot --csv bad.csv
errs "line 3: d: word '7fc0': has 4 hexadecimal digits, must have 8 (fp32)"
errs "line 5: instr 'rubbish': unknown instruction"

expect 2 dot 1,zero 1,0x12345 0x --accumulator hopper_fp16
errs "3 problems"
errs "'zero'"
errs "B: word '0x12345': must be hexadecimal digits of 16 bits (fp16)"
errs "C: word '0x': must be hexadecimal digits of 32 bits (fp32)"
expect 2 dot 1,2 1 --accumulator hopper_fp16
errs "A has 2 factors and B has 1: must be the same number"
expect 2 dot 1 1 1,2 --accumulator hopper_fp16
errs "C '1,2': must be one number"
expect 2 dot 1 1 --accumulator hopper_fp8
errs "takes fp8_e4m3, fp8_e5m2; choose with --format F"
expect 2 dot 1 1 --accumulator hopper_fp8 --format bf16
errs "not bf16"
expect 2 dot 1 1 --accumulator hopper_fp17
errs "did you mean 'hopper_fp16'?"
# All problems at once, with or without a known accumulator.
expect 2 dot 1,2 3,4 zz --accumulator hopper
errs "did you mean one of hopper_fp16, hopper_fp16_acc16, hopper_bf16"
errs "C 'zz': not a number"
expect 2 dot 1 1 --quiet --accumulator fp16
errs "--quiet"
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

#!/usr/bin/env bash
# lockstep verify --hardware: the table, the JSON file, repeatability, rejected input.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

expect 0 verify --hardware --cases 2000 --json v.json
for part in unit instruction model cases mismatches "VCVTPS2PH RNE" VDPBF16PS TDPBF16PS BFDOT \
  "checks ran on this machine" " 0 mismatches" "Wrote v.json"; do
  says "$part"
done
errs "F16C VCVTPH2PS: 65536 cases, 0 mismatches"   # no terminal: a line per unit
grep -v '^Wrote' out.txt >first.txt
that grep -q '"format": "lockstep-verify-hardware"' v.json
that grep -q '"cases": 2000' v.json
that test "$(grep -c '"available"' v.json)" -ge 16

expect 0 verify --hardware --cases 2000 --threads 1
that cmp -s first.txt out.txt
expect 0 verify --hardware --cases 10 --only F16C
says "VCVTPH2PS"
that test "$(grep -c VDPBF16PS out.txt)" = 0

# A unit that did not run gives the reason; if nothing was compared, the exit code is not 0.
absent() { grep -q "\"instruction\": \"[^\"]*$1" <(grep -B4 '"available": false' v.json); }
for unit in TDPBF16PS VFMADD231PH m64n; do
  absent "$unit" || continue
  expect 3 verify --hardware --cases 10 --only "$unit" --json w.json --overwrite
  says "Nothing was compared."
  says "not run: "
  says "$(sed -n 's/.*"why_not": "\([^"]\{1,30\}\).*/\1/p' w.json | head -1)"
  expect 3 verify --hardware --cases 10 --only "$unit" --require "$unit"
  says "no check of '$unit' ran"
done
if absent "operand layouts"; then
  expect 3 verify --hardware --cases 10 --require "NVIDIA GPUs"
  says "no check of 'NVIDIA GPUs' ran"
  says " 0 mismatches"
fi
expect 0 verify --hardware --cases 10 --only F16C --require F16C
expect 2 verify --hardware --require NVIDEA
errs "--require NVIDEA"

expect 2 verify
errs "--hardware"
expect 2 verify some.h5
errs "No such file"
expect 2 verify --hardware --json v.json
errs "--overwrite"
expect 0 verify --hardware --cases 10 --only F16C --json v.json --overwrite
expect 2 verify --hardware --only F61C
errs "F61C"
expect 2 verify --hardware --cases -1 --threads 0
errs "--cases -1"
errs "--threads 0"
finish

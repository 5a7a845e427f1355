#!/usr/bin/env bash
# lockstep verify --hardware: the table, the JSON file, repeatability, refused input.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

expect 0 verify --hardware --cases 2000 --json v.json
for part in unit instruction model cases mismatches "VCVTPS2PH RNE" VDPBF16PS TDPBF16PS BFDOT \
  "units are on this machine" " 0 mismatches" "Wrote v.json"; do
  says "$part"
done
that test ! -s err.txt
grep -v '^Wrote' out.txt >first.txt
that grep -q '"format": "lockstep-verify-hardware"' v.json
that grep -q '"cases": 2000' v.json
that test "$(grep -c '"available"' v.json)" -ge 16

expect 0 verify --hardware --cases 2000 --threads 1
that cmp -s first.txt out.txt
expect 0 verify --hardware --cases 10 --only F16C
says "VCVTPH2PS"
that test "$(grep -c VDPBF16PS out.txt)" = 0

expect 2 verify
errs "--hardware"
expect 2 verify some.h5
errs "cannot read captures"
expect 2 verify --hardware --json v.json
errs "--overwrite"
expect 0 verify --hardware --cases 10 --only F16C --json v.json --overwrite
expect 2 verify --hardware --only F61C
errs "F61C"
expect 2 verify --hardware --cases -1 --threads 0
errs "--cases -1"
errs "--threads 0"
finish

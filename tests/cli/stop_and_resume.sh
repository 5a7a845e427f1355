#!/usr/bin/env bash
# Ctrl-C stops a run with an intact file and exit code 130; --resume ends with the same bits.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

run=(replay mlp --data synthetic:300 --steps 60 --batch 32 --lanes fp32,torch-autocast-fp16
  --checkpoint-every 7)
expect 0 "${run[@]}" -o whole.h5 --quiet

# Stopped once the first step is recorded; the progress lines show when.
stop_with() {
  local signal=$1 file=$2
  "$program" "${run[@]}" -o "$file" >out.txt 2>err.txt &
  local pid=$! code=0
  for _ in $(seq 600); do
    grep -q '^step ' err.txt && break
    sleep 0.05
  done
  kill -s "$signal" "$pid"
  wait "$pid" || code=$?
  echo "$code" >code.txt
}

for signal in INT TERM; do
  stop_with $signal part-$signal.h5
  expected=$([ $signal = INT ] && echo 130 || echo 143)
  if [ "$(cat code.txt)" = 0 ]; then
    echo "SKIPPED: 4 checks: the run was over before SIG$signal came"
    continue
  fi
  that test "$(cat code.txt)" = "$expected"
  says "lockstep replay --resume part-$signal.h5"
  expect 0 report part-$signal.h5
  says "of 60 asked for"
  expect 0 replay --resume part-$signal.h5 --quiet
  expect 0 check part-$signal.h5 --baseline whole.h5 --exact --strict
  says "PASS"
done

# A complete run is not changed.
progress=$(cksum <whole.h5.progress.json)
before=$(cksum <whole.h5)
expect 0 replay mlp --resume -o whole.h5 --quiet
that test ! -s out.txt
expect 0 replay --resume whole.h5
says "whole.h5 is complete: all 60 steps"
that test "$before" = "$(cksum <whole.h5)"
that test "$progress" = "$(cksum <whole.h5.progress.json)"
expect 0 check whole.h5 --baseline part-INT.h5 --exact --strict
expect 2 replay lenet --resume -o whole.h5 --quiet
errs "mlp"
finish

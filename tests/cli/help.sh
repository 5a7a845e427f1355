#!/usr/bin/env bash
# Help texts against golden files; LOCKSTEP_REWRITE_GOLDEN=1 rewrites them.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

expect 0 --help
commands=$(awk '/^Subcommands:/ {on = 1; next} on && /^  [a-z]/ {print $1}' out.txt)
that test "$(wc -w <<<"$commands")" -ge 7
for command in "" $commands; do
  golden=$source_dir/tests/golden/help_${command:-lockstep}.txt
  expect 0 ${command:+"$command"} --help
  [ -z "${LOCKSTEP_REWRITE_GOLDEN:-}" ] || cp out.txt "$golden"
  checks=$((checks + 1))
  diff "$golden" out.txt >diff.txt 2>&1 || {
    problem "help of '${command:-lockstep}' is not its golden text"
    sed 's/^/  /' diff.txt
  }
done
finish

# Shared by the command-line tests: a scratch folder, and assertions on exit code and output. Source it
# with the program's path as the first argument; end the script with `finish`.
set -uo pipefail
program=$(realpath "$1")
source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 1
failures=0
checks=0

problem() {
  failures=$((failures + 1))
  printf 'FAILED: %s\n' "$1"
  sed 's/^/  stdout: /' out.txt
  sed 's/^/  stderr: /' err.txt
}

# expect CODE ARGUMENT...: runs the program; its output is in out.txt and err.txt.
expect() {
  local code=$1 actual=0
  shift
  checks=$((checks + 1))
  "$program" "$@" >out.txt 2>err.txt || actual=$?
  [ "$actual" = "$code" ] || problem "exit code $actual, not $code: lockstep $*"
}
# says TEXT / errs TEXT: stdout / stderr of the last run holds TEXT.
says() { checks=$((checks + 1)); grep -qF -- "$1" out.txt || problem "stdout lacks '$1'"; }
errs() { checks=$((checks + 1)); grep -qF -- "$1" err.txt || problem "stderr lacks '$1'"; }
# that COMMAND...: the command succeeds.
that() { checks=$((checks + 1)); "$@" || problem "not true: $*"; }

finish() {
  echo "$checks checks, $failures failed"
  [ "$failures" = 0 ]
}

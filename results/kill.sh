#!/usr/bin/env bash
# Kills a workload with SIGKILL again and again, and writes what came of it to results/kill-WORKLOAD.txt: every kill is
# followed by a verification of the directory, a recovery, and a comparison with what had been acknowledged.
#
#   results/kill.sh mixed        half an hour
#   results/kill.sh cart 5       five minutes; further arguments go to keybench kill
#
# KEYBENCH names a program that is built already.
set -euo pipefail
cd "$(dirname "$0")/.."
workload=${1:?usage: results/kill.sh WORKLOAD [MINUTES [FLAG ...]]}
minutes=${2:-30}
shift $(($# < 2 ? $# : 2))
if [ -z "${KEYBENCH:-}" ]; then
  cargo build --release -q -p keybench
  KEYBENCH=${CARGO_TARGET_DIR:-target}/release/keybench
fi
text=results/kill-$(basename "$workload" .lua).txt
{
  echo "command: keybench kill $workload --minutes $minutes $*"
  echo "commit: $(git rev-parse --short HEAD)$(git diff --quiet HEAD -- crates keybench || echo ' with changes')"
  echo "machine: $(nproc) x $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1), $(awk '/MemTotal/ {printf "%.0f GiB", $2/1048576}' /proc/meminfo), $(uname -sr)"
  echo "date: $(date -u +%F)"
} >"$text"
dir=$(mktemp -d)
trap 'rm -f "$dir/log"; rmdir --ignore-fail-on-non-empty "$dir"' EXIT
failed=
"$KEYBENCH" kill "$workload" --minutes "$minutes" --dir "$dir/kill" "$@" >"$dir/log" || failed=$?
{
  echo "== the first and the last kills"
  grep -E '^ *[0-9]+ +[0-9]+:[0-9]{2} ' "$dir/log" | sed -n '1,5p'
  echo "    ..."
  grep -E '^ *[0-9]+ +[0-9]+:[0-9]{2} ' "$dir/log" | tail -5
  echo "== summary"
  grep -vE '^ *[0-9]+ +[0-9]+:[0-9]{2} ' "$dir/log"
  echo "exit code ${failed:-0}"
} >>"$text"
cat "$text"
exit "${failed:-0}"

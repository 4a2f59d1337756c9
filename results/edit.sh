#!/usr/bin/env bash
# Prints the seconds from an edit of one file of the engine to the result of a test: results/edit.sh [file] [test filter]
# The tests must be built before; only the file's time of change is touched.
set -euo pipefail
cd "$(dirname "$0")/.."
file=${1:-crates/kingtide/src/commit/mod.rs} filter=${2:-api::entries::}
test=(cargo test -p kingtide-tests --test engine "$filter")

"${test[@]}" >/dev/null
for _ in 1 2 3; do
  touch "$file"
  start=$(date +%s.%N)
  "${test[@]}" 2>/dev/null | grep '^test result'
  awk -v file="$file" -v start="$start" -v end="$(date +%s.%N)" 'BEGIN { printf "%s: %.1f s\n", file, end - start }'
done

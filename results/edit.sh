#!/usr/bin/env bash
# Prints the seconds from an edit of one file of the engine to the result of a test: results/edit.sh [file] [test filter]
# The edit is a statement in the file's first method, another one each time; the file is restored at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
file=${1:-crates/kingtide/src/commit/mod.rs} filter=${2:-api::entries::}
test=(cargo test -p kingtide-tests --test engine "$filter")
before=$(mktemp)
cp -p "$file" "$before"
trap 'cp "$before" "$file"; rm -f "$before"' EXIT

"${test[@]}" >/dev/null
for n in 1 2 3; do
  awk -v n="$n" '{ print } !done && /^    (pub |pub\(.*\) )?fn .*\{$/ { print "        std::hint::black_box(" n "_u64);"; done = 1 }' "$before" >"$file"
  ! cmp -s "$before" "$file" || { echo "$file has no method to edit" >&2; exit 1; }
  start=$(date +%s.%N)
  "${test[@]}" 2>/dev/null | grep '^test result'
  awk -v file="$file" -v start="$start" -v end="$(date +%s.%N)" 'BEGIN { printf "%s: %.1f s\n", file, end - start }'
done

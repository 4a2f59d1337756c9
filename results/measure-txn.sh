#!/usr/bin/env bash
# Measures transactions side by side, interleaved, answers verified, medians of three: the section "Transactions" of
# results/README.md. About ten minutes on two cores; needs 1 GB of disk and the peers (`cargo xtask peers`).
#
#   results/measure-txn.sh NAME              writes results/NAME.csv and results/NAME.txt
#   results/measure-txn.sh NAME rmw_locking  only the rows whose names begin so
#
# N, OPS and REPEAT in the environment change the data set, the operations of a run and the repeats; KEYBENCH names a
# program that is built already.
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:?usage: results/measure-txn.sh NAME [ROW ...]}
shift
engines=${ENGINES:-kingtide,rocksdb,tidesdb}
repeat=${REPEAT:-3}
n=${N:-300000}
ops=${OPS:-400000}
hot=${HOT:-100}
if [ -z "${KEYBENCH:-}" ]; then
  cargo build --release -q -p keybench
  KEYBENCH=${CARGO_TARGET_DIR:-target}/release/keybench
fi
csv=results/$name.csv
text=results/$name.txt

if [ ! -e "$text" ]; then
  {
    echo "command: results/measure-txn.sh $name $*"
    echo "commit: $(git rev-parse --short HEAD)$(git diff --quiet HEAD -- crates keybench || echo ' with changes')"
    echo "machine: $(nproc) x $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1), $(awk '/MemTotal/ {printf "%.0f GiB", $2/1048576}' /proc/meminfo), $(uname -sr)"
    echo "date: $(date -u +%F)"
  } >"$text"
fi

wanted=("$@")
row() {
  local row=$1
  shift
  if [ ${#wanted[@]} -gt 0 ]; then
    local w hit=
    for w in "${wanted[@]}"; do [[ $row == "$w"* ]] && hit=1; done
    [ -n "$hit" ] || return 0
  fi
  echo "== $row: keybench micro $*" | tee -a "$text"
  local before
  before=$(wc -l <"$text")
  # A row that ends in wrong answers or in a failure says so in the text; the others are still measured.
  "$KEYBENCH" micro -c "$engines" --repeat "$repeat" --test-name "$row" --csv "$csv" "$@" >>"$text" 2>&1 ||
    echo "$row did not end well: see $text" >&2
  tail -n "+$before" "$text" | grep -E '^(kingtide|rocksdb|tidesdb) +[0-9,]+ +(\(|[0-9,]+ +[0-9,]+ .* %)' | cut -c1-80 || true
}

# One put: as a write of its own, and as a transaction of its own.
row put_plain -w write -p random -b 1 -t 2 -o "$ops"
row put_txn -w txn-write -p random --txn-size 1 -t 2 -o "$ops"
for size in 10 100; do
  row put_txn_$size -w txn-write -p random --txn-size $size -t 2 -o "$ops"
done
# Counters read, raised by one and put back, at snapshot isolation.
for mode in optimistic locking; do
  for threads in 2 8; do
    for contention in low high; do
      for size in 1 10 100; do
        keys=()
        [ $contention = low ] || keys=(--hot-keys "$hot")
        row rmw_${mode}_${contention}_t${threads}_$size -w txn-rmw --isolation snapshot --txn-mode $mode \
          --txn-size $size -t $threads "${keys[@]}" -o "$n" --reads "$ops"
      done
    done
  done
done

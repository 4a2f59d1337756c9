#!/usr/bin/env bash
# Measures the engines side by side, interleaved, answers verified, medians of three: the rows of results/README.md.
# About half an hour on two cores; needs 10 GB of disk and the peers (`cargo xtask peers`).
#
#   results/measure.sh NAME            writes results/NAME.csv and results/NAME.txt
#   results/measure.sh NAME get seek   only the rows whose names begin so
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:?usage: results/measure.sh NAME [ROW ...]}
shift
engines=${ENGINES:-kingtide,rocksdb,tidesdb}
repeat=${REPEAT:-3}
cargo build --release -q -p keybench
keybench=${CARGO_TARGET_DIR:-target}/release/keybench
csv=results/$name.csv
text=results/$name.txt

if [ ! -e "$text" ]; then
  {
    echo "command: results/measure.sh $name $*"
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
  "$keybench" micro -c "$engines" --repeat "$repeat" --test-name "$row" --csv "$csv" "$@" >>"$text" 2>/dev/null
  grep -E '^(kingtide|rocksdb|tidesdb) +[0-9,]+ +\(' "$text" | tail -3
}

n=${N:-2000000}
row put_seq_1000 -w write -p seq -o $n -b 1000
row put_random_1000 -w write -p random -o $n -b 1000
row put_random_1 -w write -p random -o $n -b 1
row get_random -w read -p random -o $n --reads 1000000
row get_zipfian -w read -p zipfian -o $n --reads 1000000
row seek_random -w seek -p random -o $n --reads 1000000
row seek_seq -w seek -p seq -o $n --reads 2000000
row seek_zipfian -w seek -p zipfian -o $n --reads 1000000
row range_100 -w range -p random --range-size 100 -o $n --reads 100000
row range_1000 -w range -p random --range-size 1000 -o $n --reads 20000
row iterate -w iterate -p random -o $n
row put_4k_100 -w write -p random -v 4096 -b 100 -o 300000
row get_4k -w read -p random -v 4096 --load-batch 100 -o 300000 --reads 600000
row put_sync_2 -w write -p random --sync -t 2 -b 1 -o 50000
row put_sync_8 -w write -p random --sync -t 8 -b 1 -o 100000
row reopen -w read -p random -o $n --reads 100000 --after-load reopen

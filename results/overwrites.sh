#!/usr/bin/env bash
# Overwrites values for a long time, checks every answer, and writes keybench's report to results/overwrites-SIZE.txt, with a check of the dead
# space in Kingtide's value logs at every second, which must stay within the bound in docs/large-values.md.
#
#   results/overwrites.sh                              half an hour for each engine with 4 KiB and 64 KiB: three hours
#   results/overwrites.sh 60 kingtide                  one minute of Kingtide with each size
#   results/overwrites.sh 30m kingtide,rocksdb 64K     a time, a list of engines, and sizes
#   APPEND=1 results/overwrites.sh 4m                  adds these runs to the reports of longer ones
#
# KEYBENCH names a keybench program that is already built, DATA a directory for the stores (4 GiB of values each, and dead values), REPORTS one
# for the reports, with timeline.tsv and figures. RocksDB runs with BlobDB, and with garbage collection at Kingtide's default share of dead
# bytes. The engines run one after the other. If less than LEAST_FREE GiB (default 8) are free, a run ends early, and its report covers what was
# done until then.
set -euo pipefail
cd "$(dirname "$0")/.."
secs=${1:-30m} engines=${2:-kingtide,rocksdb,tidesdb}
shift $(($# < 2 ? $# : 2))
sizes=("$@")
[ $# -gt 0 ] || sizes=(4K 64K)
if [ -z "${KEYBENCH:-}" ]; then
  cargo build --release -q -p keybench
  KEYBENCH=${CARGO_TARGET_DIR:-target}/release/keybench
fi
data=$(mktemp -d "${DATA:-${TMPDIR:-/tmp}}/overwrites.XXXXXX")
reports=${REPORTS:-$data/reports}
trap 'rm -rf "$data"' EXIT
data_set=$((4 << 30)) failed=0

# Prints each second at which dead and hidden bytes exceeded the bound in docs/large-values.md with the default options: the cap, the slack
# (640 MiB), two value logs (256 MiB) and the bytes of tables. What memtables hide is known only when they are flushed, and is not included.
check() {
  awk -F '\t' -v cap=0.25 '
    $6 != "run" { next }
    { last = $7; value[$8] = $9 }
    $8 == "vlog_bytes" { stored[$7] = $9 }
    $8 == "vlog_dead_bytes" { dead[$7] = $9 }
    $8 == "vlog_hidden_bytes" { hidden[$7] = $9 }
    $8 ~ /^level[0-9]+_bytes$/ { tables[$7] += $9 }
    END {
      mib = 1048576
      for (at in stored) {
        n++
        bytes = dead[at] + hidden[at]
        past = bytes - cap * stored[at]
        above += past > 0
        if (past > most) { most = past; when = at }
        if (stored[at] > 0 && bytes / stored[at] > share) share = bytes / stored[at]
        if (past > (640 + 256) * mib + tables[at]) { broken++; printf "BROKEN at %s s: %.0f MiB dead and hidden of %.0f\n", at, bytes / mib, stored[at] / mib }
      }
      printf "dead space: %d samples, %d of them past the cap of %.0f %%, by %.0f MiB at most (at %s s; 896 MiB and tables are allowed); the largest share %.1f %%; writers held for %.3f s, longest wait %.1f ms\n",
        n, above, cap * 100, most / mib, when, share * 100, value["stall_dead_space_micros"] / 1e6, value["stall_max_micros"] / 1e3
      exit n == 0 || broken > 0
    }' "$1"
}

# Summarizes each minute of a run from the samples of each second, also of a run that ended early.
minutes() {
  awk -F '\t' '
    $6 != "run" { next }
    $8 == "ops_per_s" {
      m = int(($7 - 0.5) / 60)
      last = m > last ? m : last
      sum[m] += $9; n[m]++
      if (!(m in least) || $9 < least[m]) least[m] = $9
    }
    $8 == "disk_bytes" && $9 > store[m] { store[m] = $9 }
    $8 == "rss_mb" && $9 > resident[m] { resident[m] = $9 }
    $8 == "vlog_bytes" { stored[$7] = $9 }
    $8 == "vlog_dead_bytes" { dead[$7] = $9 }
    $8 == "vlog_hidden_bytes" { hidden[$7] = $9 }
    END {
      for (at in stored) {
        m = int((at - 0.5) / 60)
        if (stored[at] > 0 && (dead[at] + hidden[at]) / stored[at] > share[m]) share[m] = (dead[at] + hidden[at]) / stored[at]
      }
      print "minute   calls/s   slowest second   store, most   resident, most   dead and hidden, most"
      for (m = 0; m <= last; m++)
        printf "%6d %9d %16d %9.2f GiB %12d MiB %23s\n", m + 1, sum[m] / n[m], least[m], store[m] / 1024 ^ 3, resident[m], (m in share) ? sprintf("%.1f %%", 100 * share[m]) : ""
    }' "$1"
}

# Ends a run whose store is about to fill the disk.
watch() {
  while kill -0 "$1" 2>/dev/null; do
    if [ "$(df --output=avail -k "$data" | tail -1)" -lt $((${LEAST_FREE:-8} << 20)) ]; then
      echo "ended early: less than ${LEAST_FREE:-8} GiB are free" >>"$2"
      kill -INT "$1"
      return
    fi
    sleep 1
  done
}

for size in "${sizes[@]}"; do
  text=results/overwrites-$size.txt
  items=$((data_set / $(numfmt --from=iec "$size")))
  {
    echo "command: results/overwrites.sh $secs $engines $size"
    echo "commit: $(git rev-parse --short HEAD)$(git diff --quiet HEAD -- crates keybench || echo ' with changes')"
    echo "machine: $(nproc) x $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1), $(awk '/MemTotal/ {printf "%.0f GiB", $2/1048576}' /proc/meminfo), $(uname -sr)"
    echo "date: $(date -u +%F)"
  } >"$data/head"
  if [ -n "${APPEND:-}" ]; then echo | cat - "$data/head" >>"$text"; else cp "$data/head" "$text"; fi
  for engine in ${engines//,/ }; do
    flags=()
    if [ "$engine" = rocksdb ]; then
      flags=(--opt rocksdb.enable_blob_files=true --opt rocksdb.min_blob_size=512 --opt rocksdb.blob_compression_type=kLZ4Compression
        --opt rocksdb.enable_blob_garbage_collection=true --opt rocksdb.blob_garbage_collection_age_cutoff=1.0
        --opt rocksdb.blob_garbage_collection_force_threshold=0.25)
    fi
    command=(run overwrite --backend "$engine" --threads 4 --secs "$secs" --value-size "$size" --items "$items" --repeat 1 --timeline 1 --verify)
    echo "== keybench ${command[*]} ${flags[*]}" >>"$text"
    "$KEYBENCH" "${command[@]}" "${flags[@]}" --data-dir "$data/store" --report-dir "$reports/$size-$engine" >"$data/log" 2>&1 &
    run=$!
    watch $run "$text" &
    status=0
    wait $run || status=$?
    { grep -v -e ' units (' -e ': seeding: ' "$data/log" || true; } >>"$text" # without progress lines
    [ $status = 0 ] || { failed=1 && echo "exit code $status" >>"$text"; }
    timeline=$(find "$reports/$size-$engine" -name timeline.tsv 2>/dev/null | sort | tail -1)
    [ -n "$timeline" ] || { failed=1 && echo "no timeline" >>"$text" && continue; }
    minutes "$timeline" >>"$text"
    if [ "$engine" = kingtide ]; then
      check "$timeline" >>"$text" || failed=1
    fi
    rm -rf "$data/store"
  done
  cat "$text"
done
exit $failed

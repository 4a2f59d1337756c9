#!/usr/bin/env bash
# Prints the CSV of results/measure-txn.sh as a Markdown table: a row for each test, commits per second for each engine,
# Kingtide as a multiple of the best other engine whose answers were right, aborts and latencies. The CSV holds medians.
#
#   results/table-txn.sh results/NAME.csv
set -euo pipefail
awk -F, '
NR == 1 { for (i = 1; i <= NF; i++) col[$i] = i; next }
{
  op = $col["operation"]; test = $col["test_name"]; engine = $col["engine"]
  if (op == "LOAD") next
  if (!(test in seen)) { seen[test] = 1; order[++tests] = test }
  if (!(engine in known)) { known[engine] = 1; engines[++count] = engine }
  txn = $col["commits"] != ""
  rate[test, engine] = txn ? $col["commits_per_sec"] : $col["ops_per_sec"]
  aborts[test, engine] = txn ? sprintf("%.1f", 100 * $col["abort_rate"]) : "-"
  p50[test, engine] = $col["p50_us"]; p99[test, engine] = $col["p99_us"]
  p999[test, engine] = $col["p999_us"]; max[test, engine] = $col["max_us"]
  wrong[test, engine] = $col["wrong"]; lost[test, engine] = $col["lost_updates"]
}
function human(x) { return x >= 1e6 ? sprintf("%.2f M", x / 1e6) : x >= 1e4 ? sprintf("%.0f k", x / 1e3) : sprintf("%.0f", x) }
function us(x) { return x >= 100 ? sprintf("%.0f", x) : sprintf("%.1f", x) }
function list(what, kind,   e, s, key) {
  s = ""
  for (e = 1; e <= count; e++) {
    key = what SUBSEP engines[e]
    if (e > 1) s = s " / "
    if (!(key in rate)) s = s "-"
    else if (kind == "aborts") s = s aborts[key]
    else if (kind == "p50") s = s us(p50[key])
    else if (kind == "p99") s = s us(p99[key])
    else if (kind == "p999") s = s us(p999[key])
    else s = s sprintf("%.1f", max[key] / 1000)
  }
  return s
}
END {
  printf "| test |"; for (e = 1; e <= count; e++) printf " %s commits/s |", engines[e]
  printf " x best peer | aborts %% | p50 us | p99 us | p99.9 us | max ms |\n|---|"
  for (e = 1; e <= count + 6; e++) printf "---|"; printf "\n"
  for (t = 1; t <= tests; t++) {
    test = order[t]; best = 0
    printf "| %s |", test
    for (e = 1; e <= count; e++) {
      engine = engines[e]
      if (!((test, engine) in rate)) { printf " - |"; continue }
      if (wrong[test, engine] > 0) { printf lost[test, engine] > 0 ? " lost updates |" : " wrong answers |"; continue }
      printf " %s |", human(rate[test, engine])
      if (engine != "kingtide" && rate[test, engine] > best) best = rate[test, engine]
    }
    right = best && (test, "kingtide") in rate && wrong[test, "kingtide"] == 0
    printf " %s |", right ? sprintf("**%.2f**", rate[test, "kingtide"] / best) : "-"
    printf " %s | %s | %s | %s | %s |\n", list(test, "aborts"), list(test, "p50"), list(test, "p99"), list(test, "p999"), list(test, "max")
  }
  if (("put_plain", "kingtide") in rate && ("put_txn", "kingtide") in rate) {
    printf "\nA transaction of one put runs at %.2f of a plain put'"'"'s rate (Kingtide", rate["put_txn", "kingtide"] / rate["put_plain", "kingtide"]
    for (e = 1; e <= count; e++) {
      engine = engines[e]
      if (engine != "kingtide" && ("put_plain", engine) in rate && ("put_txn", engine) in rate)
        printf "; %s %.2f", engine, rate["put_txn", engine] / rate["put_plain", engine]
    }
    printf ").\n"
  }
}' "${1:?usage: results/table-txn.sh FILE.csv}"

#!/usr/bin/env bash
# Prints a CSV of `keybench micro -c` as a Markdown table: a row for each test, operations per second for each engine, and
# Kingtide as a multiple of the best other engine whose answers were right. The CSV holds medians.
#
#   results/table.sh results/NAME.csv
set -euo pipefail
awk -F, '
NR == 1 { for (i = 1; i <= NF; i++) col[$i] = i; next }
{
  op = $col["operation"]; test = $col["test_name"]; engine = $col["engine"]
  if (op == "LOAD") next
  if (!(test in seen)) { seen[test] = 1; order[++tests] = test }
  if (!(engine in known)) { known[engine] = 1; engines[++count] = engine }
  rate[test, engine] = $col["ops_per_sec"]; p999[test, engine] = $col["p999_us"]; max[test, engine] = $col["max_us"]
  rss[test, engine] = $col["peak_rss_mb"]; wrong[test, engine] = $col["wrong"]
}
function human(x) { return x >= 1e6 ? sprintf("%.2f M", x / 1e6) : x >= 1e4 ? sprintf("%.0f k", x / 1e3) : sprintf("%.0f", x) }
END {
  printf "| test |"; for (e = 1; e <= count; e++) printf " %s /s |", engines[e]
  printf " x best peer | p99.9 us |"; printf " max ms | peak RSS MiB |\n|---|"
  for (e = 1; e <= count + 4; e++) printf "---|"; printf "\n"
  for (t = 1; t <= tests; t++) {
    test = order[t]; best = 0
    printf "| %s |", test
    for (e = 1; e <= count; e++) {
      engine = engines[e]
      if (!((test, engine) in rate)) { printf " - |"; continue }
      if (wrong[test, engine] > 0) { printf " wrong answers |"; continue }
      printf " %s |", human(rate[test, engine])
      if (engine != "kingtide" && rate[test, engine] > best) best = rate[test, engine]
    }
    printf " %s |", best ? sprintf("**%.2f**", rate[test, "kingtide"] / best) : "-"
    a = b = c = ""
    for (e = 1; e <= count; e++) {
      s = e == 1 ? "" : " / "
      a = a s sprintf("%.0f", p999[test, engines[e]]); b = b s sprintf("%.0f", max[test, engines[e]] / 1000)
      c = c s sprintf("%.0f", rss[test, engines[e]])
    }
    printf " %s | %s | %s |\n", a, b, c
  }
}' "${1:?usage: results/table.sh FILE.csv}"

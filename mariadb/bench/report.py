"""The report of a run: a CSV file with one line per measurement, and a page of text with tables of medians."""

import csv
import os
import platform
import statistics
import subprocess
from pathlib import Path

COLUMNS = ("engine", "test", "threads", "binlog", "repeat", "secs", "tps", "qps", "p95_ms", "avg_ms", "max_ms",
           "transactions", "conflicts_ignored", "error", "cpu_s", "written_bytes", "read_bytes", "peak_rss_bytes",
           "settle_s", "settle_cpu_s", "settle_written_bytes", "data_bytes", "binlog_bytes")
OURS = "kingtide"


class CsvFile:
    """Written line by line, so that an interrupted run leaves what was measured."""

    def __init__(self, path):
        self._file = open(path, "w", newline="", encoding="utf-8")
        self._writer = csv.DictWriter(self._file, COLUMNS, restval="")
        self._writer.writeheader()

    def add(self, row):
        self._writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})
        self._file.flush()

    def close(self):
        self._file.close()


def machine():
    """Lines about the machine."""
    cpu = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                if line.startswith("model name")), platform.machine())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    return [f"machine: {cpu}, {os.cpu_count()} cores, {memory} MiB, Linux {platform.release()}, "
            f"load {os.getloadavg()[0]:.2f} at the start"]


def file_system(path):
    """Type of the file system that holds a path."""
    done = subprocess.run(["stat", "-f", "-c", "%T", str(path)], stdout=subprocess.PIPE, text=True)
    return done.stdout.strip() or "unknown"


def commit(repository):
    """The commit of a checkout, with a mark if files were changed."""
    git = ["git", "-C", str(repository), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(git, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.strip() or "none"
    except OSError:
        return "none"


def median(rows, column):
    """The median of a column, or None if nothing was measured."""
    values = [row[column] for row in rows if not row.get("error")]
    return statistics.median(values) if values else None


def tables(rows, engines):
    """Markdown tables of medians: rates and latencies, then what they cost."""
    text = ""
    for binlog in dict.fromkeys(row["binlog"] for row in rows):
        some = [row for row in rows if row["binlog"] == binlog]
        text += f"## Binlog {binlog}\n\nTransactions per second, and the 95th percentile of their latency (medians).\n\n"
        text += _table(some, engines, _rate, [f"{OURS} / best peer"] if _has_peers(engines) else [], _ratio)
        text += "\nCPU of the server per transaction, bytes written per transaction (those of the time until the engine "
        text += "had settled included), largest resident set, data on disk after the run.\n\n"
        text += _table(some, engines, _cost, [], None) + "\n"
    return text


def _has_peers(engines):
    return OURS in engines and len(engines) > 1


def _table(rows, engines, cell, extra, extra_cell):
    head = ["test", "threads", *engines, *extra]
    text = "| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|\n"
    for test, threads in dict.fromkeys((row["test"], row["threads"]) for row in rows):
        by_engine = {e: [r for r in rows if (r["engine"], r["test"], r["threads"]) == (e, test, threads)]
                     for e in engines}
        cells = [cell(found) for found in by_engine.values()] + ([extra_cell(by_engine)] if extra else [])
        text += f"| {test} | {threads} | " + " | ".join(cells) + " |\n"
    return text


def _rate(rows):
    tps = median(rows, "tps")
    if tps is None:
        return rows[0]["error"] if rows else "-"
    ignored = sum(row["conflicts_ignored"] for row in rows)
    return f"{tps:,.0f} ({median(rows, 'p95_ms'):.2f} ms)" + (f", {ignored:.0f} conflicts ignored" if ignored else "")


def _ratio(by_engine):
    medians = {e: median(rows, "tps") for e, rows in by_engine.items()}
    peers = {e: tps for e, tps in medians.items() if e != OURS and tps}
    if not peers or not medians.get(OURS):
        return "-"
    best = max(peers, key=peers.get)
    return f"{medians[OURS] / peers[best]:.2f} ({best})"


def _cost(rows):
    done = [row for row in rows if not row.get("error") and row["transactions"]]
    if not done:
        return "-"
    cpu = statistics.median((r["cpu_s"] + r["settle_cpu_s"]) / r["transactions"] for r in done)
    written = statistics.median((r["written_bytes"] + r["settle_written_bytes"]) / r["transactions"] for r in done)
    return (f"{cpu * 1e6:,.0f} us, {written:,.0f} B, {median(done, 'peak_rss_bytes') / 2**20:,.0f} MiB, "
            f"{median(done, 'data_bytes') / 2**20:,.0f} MiB")

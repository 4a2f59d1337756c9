"""Figures of a run, as SVG: for each quantity and each setting of the binlog one file with a panel for each test.

    figures.py points.csv...        draws them beside the first file
"""

import csv
import math
import statistics
import sys
from pathlib import Path
from xml.sax.saxutils import escape

COLOURS = ("#2f6db5", "#d9822b", "#2a9d63", "#8a5cb8", "#b5485d", "#6b7280")
PANEL_WIDTH, PANEL_HEIGHT, COLUMNS = 290, 210, 4
LEFT, TOP, BOTTOM = 52, 34, 30
HEAD = 62
STYLE = ("text{font-family:system-ui,sans-serif;font-size:11px;fill:#24292f}.title{font-size:16px;font-weight:600}"
         ".panel{font-size:12px;font-weight:600}.axis{fill:#57606a}.end{text-anchor:end}.middle{text-anchor:middle}")


def of_run(rows, engines):
    """The figures that there are data for: pairs of a file's name and its text."""
    quantities = (
        ("tps", "Transactions per second", lambda r: r["tps"]),
        ("p95", "95th percentile of latency, ms", lambda r: r["p95_ms"]),
        ("cpu", "CPU time of the server per transaction, µs", lambda r: _each(r, "cpu_s") * 1e6),
        ("written", "Bytes written per transaction", lambda r: _each(r, "written_bytes")),
        ("disk", "Data directory after the test, MiB", lambda r: r["data_bytes"] / 2**20),
        ("memory", "Largest resident set, MiB", lambda r: r["peak_rss_bytes"] / 2**20),
    )
    done = [row for row in rows if not row.get("error") and row["transactions"]]
    for binlog in dict.fromkeys(row["binlog"] for row in done):
        some = [row for row in done if row["binlog"] == binlog]
        for name, title, value in quantities:
            yield f"{name}-binlog-{binlog}.svg", _figure(some, engines, f"{title}; binlog {binlog}", value)


def _each(row, column):
    """Of a transaction, the time until the engine had settled included."""
    return (row[column] + row[f"settle_{column}"]) / row["transactions"]


def _figure(rows, engines, title, value):
    tests = list(dict.fromkeys(row["test"] for row in rows))
    columns = min(COLUMNS, len(tests))
    width = max(columns * PANEL_WIDTH, 420) + 10
    height = HEAD + math.ceil(len(tests) / columns) * PANEL_HEIGHT + 18
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
             f"<style>{STYLE}</style>", f'<rect width="{width}" height="{height}" fill="#fff"/>',
             _text(12, 24, title, "title")]
    for i, engine in enumerate(engines):
        parts += [f'<rect x="{12 + 110 * i}" y="36" width="11" height="11" fill="{COLOURS[i % len(COLOURS)]}"/>',
                  _text(28 + 110 * i, 46, engine)]
    for i, test in enumerate(tests):
        bars = _medians([row for row in rows if row["test"] == test], engines, value)
        parts += _panel(i % columns * PANEL_WIDTH, HEAD + i // columns * PANEL_HEIGHT, test, bars)
    parts.append(_text(12, height - 8, "Groups are numbers of threads. Medians of repeats; the line on a bar spans them.", "axis"))
    return "\n".join([*parts, "</svg>\n"])


def _medians(rows, engines, value):
    """For each number of threads a group of (number of the engine, median, least, greatest)."""
    groups = {}
    for threads in dict.fromkeys(row["threads"] for row in rows):
        for i, engine in enumerate(engines):
            found = [value(row) for row in rows if (row["threads"], row["engine"]) == (threads, engine)]
            if found:
                groups.setdefault(threads, []).append((i, statistics.median(found), min(found), max(found)))
    return groups


def _panel(x, y, title, groups):
    top = _round_up(max(greatest for group in groups.values() for _, _, _, greatest in group))
    high, wide = PANEL_HEIGHT - TOP - BOTTOM, PANEL_WIDTH - LEFT - 12
    base = y + TOP + high
    parts = [_text(x + LEFT, y + 22, title, "panel")]
    for tick in (0, top / 2, top):
        at = base - high * tick / top
        parts += [f'<path d="M{x + LEFT} {at:.1f}h{wide}" stroke="#d0d7de"/>', _text(x + LEFT - 6, at + 4, _short(tick), "axis end")]
    room = wide / len(groups)
    for g, (threads, group) in enumerate(groups.items()):
        bar = room * 0.8 / len(group)
        for i, (engine, middle, least, greatest) in enumerate(group):
            left, tall = x + LEFT + g * room + room * 0.1 + i * bar, high * middle / top
            parts.append(f'<rect x="{left:.1f}" y="{base - tall:.1f}" width="{bar - 1:.1f}" height="{tall:.1f}" '
                         f'fill="{COLOURS[engine % len(COLOURS)]}"><title>{_short(middle)}</title></rect>')
            if greatest > least:
                parts.append(f'<path d="M{left + bar / 2 - 0.5:.1f} {base - high * greatest / top:.1f}'
                             f'V{base - high * least / top:.1f}" stroke="#24292f"/>')
        parts.append(_text(x + LEFT + (g + 0.5) * room, base + 16, str(threads), "axis middle"))
    return parts


def _text(x, y, words, kind=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(words)}</text>'


def _round_up(value):
    """The next number that looks good at the end of an axis."""
    if value <= 0:
        return 1
    unit = 10 ** math.floor(math.log10(value))
    return next(step * unit for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * unit >= value * 0.999)


def _short(value):
    """A number in at most four characters or so."""
    for limit, mark in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{mark}"
    return f"{value:.3g}"


def main(paths):
    """Draws what is in files that a run wrote."""
    rows = []
    for path in paths:
        with open(path, newline="", encoding="utf-8") as lines:
            rows += [{k: _number(v) for k, v in row.items()} for row in csv.DictReader(lines)]
    for name, figure in of_run(rows, list(dict.fromkeys(row["engine"] for row in rows))):
        (Path(paths[0]).parent / name).write_text(figure, encoding="utf-8")


def _number(text):
    try:
        return float(text) if "." in text or "e" in text else int(text)
    except ValueError:
        return text


if __name__ == "__main__":
    main(sys.argv[1:])

"""Runs sysbench against a server, and knows what each of its tests must have done to the table."""

import re
import subprocess
from dataclasses import dataclass

DATABASE = "sbtest"
TABLE = "sbtest1"
TESTS = ("point_select", "read_only", "update_index", "update_non_index", "read_write", "write_only", "insert", "delete")
READ_TESTS = ("point_select", "read_only")
# Deadlock, lock wait timeout, record changed: what sysbench forgives by default, and what is not forgiven here at first.
CONFLICTS = "1213,1020,1205"

PATTERNS = {
    "reads": r"read: +(\d+)",
    "writes": r"write: +(\d+)",
    "transactions": r"transactions: +(\d+)",
    "tps": r"transactions: +\d+ +\(([\d.]+) per sec",
    "qps": r"queries: +\d+ +\(([\d.]+) per sec",
    "ignored": r"ignored errors: +(\d+)",
    "avg_ms": r"avg: +([\d.]+)",
    "p95_ms": r"95th percentile: +([\d.]+)",
    "max_ms": r"max: +([\d.]+)",
}


class SysbenchFailed(Exception):
    """sysbench gave up; `conflict` if on an error that could have been ignored."""

    def __init__(self, output):
        errors = [line for line in output.splitlines() if "FATAL" in line or "error" in line.lower()]
        super().__init__(errors[0] if errors else output[-500:])
        self.conflict = bool(re.search(rf"error ({CONFLICTS.replace(',', '|')})\b", output))


@dataclass(frozen=True)
class Content:
    """Of the table: how many rows, and the sum of the column k."""

    rows: int
    sum_k: int


def run(server, test, rows, command="run", ignore="none", **options):
    """Runs a test; what sysbench reported, as numbers."""
    line = ["sysbench", f"oltp_{test}", f"--mysql-socket={server.socket}", "--mysql-user=root", f"--mysql-db={DATABASE}",
            f"--mysql-storage-engine={server.engine.name}", f"--mysql-ignore-errors={ignore}", "--tables=1",
            f"--table-size={rows}", *(f"--{name.replace('_', '-')}={value}" for name, value in options.items()), command]
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode or "FATAL" in done.stdout:
        raise SysbenchFailed(done.stdout)
    found = {name: re.search(pattern, done.stdout) for name, pattern in PATTERNS.items()}
    return {name: float(match.group(1)) for name, match in found.items() if match}


def prepare(server, rows):
    """Loads the table."""
    with server.connect() as c:
        c.query(f"CREATE DATABASE {DATABASE}")
    run(server, "read_write", rows, command="prepare")
    with server.connect(DATABASE) as c:
        c.query(f"ANALYZE TABLE {TABLE}")


def read_all(server):
    """Reads the whole table, so that what fits into memory is there: the server has just been started."""
    with server.connect(DATABASE) as c:
        c.query(f"SELECT SUM(LENGTH(c)), SUM(LENGTH(pad)) FROM {TABLE}")
        c.query(f"SELECT SUM(k) FROM {TABLE} FORCE INDEX (k_1)")


def commit(server, times):
    """So many transactions of one row each, one after the other, in a table of their own."""
    with server.connect(DATABASE) as c:
        for n in range(times):
            c.query(f"INSERT INTO commits VALUES ({n})")


def prepare_commits(server):
    """The table for them."""
    with server.connect(DATABASE) as c:
        c.query("CREATE OR REPLACE TABLE commits (id INT PRIMARY KEY)")


# sysbench's rows are random, whatever its seed. These statements do the like in a table that must come out the same.
ALIKE = (
    "CREATE TABLE alike (id INT AUTO_INCREMENT PRIMARY KEY, k INT NOT NULL, c CHAR(120) NOT NULL, "
    "pad CHAR(60) NOT NULL, KEY (k))",
    "INSERT INTO alike SELECT seq, CRC32(seq) % 1000, REPEAT(MD5(seq), 3), MD5(seq) FROM seq_1_to_5000",
    "UPDATE alike SET k = k + 1 WHERE id % 3 = 0",
    "UPDATE alike SET k = k + 500 WHERE k BETWEEN 100 AND 200",
    "DELETE FROM alike WHERE k BETWEEN 600 AND 650 OR id BETWEEN 77 AND 99",
    "REPLACE INTO alike SELECT seq, seq, 'replaced', '' FROM seq_50_to_150",
    "INSERT INTO alike SELECT seq, 7, 'new', '' FROM seq_4900_to_5100 ON DUPLICATE KEY UPDATE k = alike.k + 1, c = 'old'",
    "UPDATE alike SET id = id + 100000, pad = LEFT(c, 60) WHERE k < 20",
    "INSERT INTO alike (k, c, pad) VALUES (1, 'last', '')",
)
QUESTIONS = (
    "CHECKSUM TABLE alike EXTENDED",
    "SELECT id FROM alike WHERE c = 'last'",
    "SELECT COUNT(*), SUM(k), MIN(id), MAX(id) FROM alike",
    "SELECT COUNT(*), SUM(id) FROM alike FORCE INDEX (k) WHERE k BETWEEN 300 AND 700",
    "SELECT k, COUNT(*) FROM alike FORCE INDEX (k) GROUP BY k ORDER BY k DESC LIMIT 20",
    "SELECT DISTINCT c FROM alike WHERE id BETWEEN 40 AND 120 ORDER BY c",
    "SELECT id, k FROM alike WHERE id < 4950 ORDER BY id DESC LIMIT 10",
)


def answers(server):
    """Executes the same statements on every engine, and asks what came of them: each question with its answer."""
    with server.connect(DATABASE) as c:
        for statement in ALIKE:
            c.query(statement)
        return [(question, c.query(question)) for question in QUESTIONS]


def content(server):
    """What the table holds now."""
    with server.connect(DATABASE) as c:
        return Content(*c.query(f"SELECT COUNT(*), SUM(k) FROM {TABLE}")[0])


def complaints(test, before, after, result):
    """Whether the table changed as the statements that the server acknowledged say."""
    writes = int(result["writes"])
    rows = {"insert": writes, "delete": -writes}.get(test, 0)
    wrong = []
    if after.rows - before.rows != rows:
        wrong.append(f"{test}: {after.rows - before.rows:+} rows instead of {rows:+}")
    if test == "update_index" and after.sum_k - before.sum_k != writes:
        wrong.append(f"{test}: k grew by {after.sum_k - before.sum_k} in {writes} increments")
    if test == "update_non_index" and after.sum_k != before.sum_k:
        wrong.append(f"{test}: k changed by {after.sum_k - before.sum_k}")
    return wrong

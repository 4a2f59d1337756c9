"""Reads from a server's binlog, with the server's own decoder, which rows its transactions inserted."""

import subprocess

from harness.server import HarnessError


class BinlogReader:
    """Remembers which files were read: each call of `inserts` reports what is new. To be called when no transaction is
    running, after a restart has begun a new file."""

    def __init__(self, server):
        self._server = server
        self._read = set()

    def skip(self):
        """Passes over all that is there."""
        self._read.update(self._files())

    def inserts(self, table):
        """The first two columns of all rows inserted into `table` by complete transactions: lists of the second by the
        first, in the order of the binlog. Incomplete transactions at the end of a file are no transactions."""
        found = {}
        for file in self._files():
            if file not in self._read:
                self._read.add(file)
                for first, second in self._decode(file, table):
                    found.setdefault(first, []).append(second)
        return found

    def _files(self):
        # The newest file is the one that the server writes now.
        # Newer servers have an index of GTIDs beside each log, with a name such as log.000001.idx.
        return sorted(f for f in self._server.logs.glob("log.[0-9]*") if f.suffix != ".idx")[:-1]

    def _decode(self, file, table):
        command = ["mariadb-binlog", "--base64-output=DECODE-ROWS", "--verbose", "--database=test", str(file)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              errors="replace") as decoder:
            rows = list(_committed(decoder.stdout, f"### INSERT INTO `test`.`{table}`"))
            complaint = decoder.stderr.read()
        # A file that ends in the middle of an event is what a crash leaves.
        if decoder.returncode and "reading" not in complaint.lower() and "truncated" not in complaint.lower():
            raise HarnessError(f"{file.name} cannot be decoded: {complaint}")
        return rows


def _committed(lines, insert):
    """The rows of the transactions that the lines show to their end."""
    pending, row = [], None
    for line in lines:
        if line.startswith("### "):
            if row is not None and line.startswith("###   @"):
                row.append(int(line.split("=", 1)[1].split()[0]))
                if len(row) == 2:
                    pending.append(tuple(row))
                    row = None
            else:
                row = [] if line.rstrip() == insert else row
        elif line.startswith("COMMIT"):
            yield from pending
            pending = []
        elif line.startswith(("BEGIN", "START TRANSACTION", "ROLLBACK")):
            pending = []

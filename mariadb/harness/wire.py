"""A client for MariaDB's text protocol over a Unix socket.

It exists because the tests need what the usual clients hide: to send a statement without waiting for its answer (it may
wait for a lock), to see each error's number, and to know exactly which statements were acknowledged before a server died.
"""

import select
import socket
import struct

LONG_PASSWORD, FOUND_ROWS, CONNECT_WITH_DB, PROTOCOL_41 = 0x1, 0x2, 0x8, 0x200
TRANSACTIONS, SECURE_CONNECTION, PLUGIN_AUTH = 0x2000, 0x8000, 0x80000
UTF8MB4 = 45
INTEGER_TYPES = {1, 2, 3, 8, 9, 13}
DECIMAL_TYPES = {0, 246}


class SqlError(Exception):
    """The server refused a statement. `code` is the server's error number, as 1213 for a deadlock."""

    def __init__(self, code, message, sql):
        super().__init__(f"error {code}: {message} in: {sql[:200]}")
        self.code = code
        self.message = message


class ServerGone(Exception):
    """The connection broke: of a statement in flight, it is not known whether it was executed."""


class Connection:
    """One session, in autocommit mode. Not to be shared by threads without care of one's own."""

    def __init__(self, path, user="root", database=None, timeout=60):
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(timeout)
        self._input = None
        self._sql = "connect"
        try:
            self._socket.connect(path)
            self._input = self._socket.makefile("rb")
            self._log_in(user, database)
        except OSError as e:
            self.close()
            raise ServerGone(str(e)) from e
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Drops the connection; the server rolls back what was not committed."""
        if self._input:
            self._input.close()
        self._socket.close()

    def query(self, sql):
        """Executes one statement: a list of rows (tuples), or the number of affected rows where there is no result."""
        self.send(sql)
        return self.result()

    def value(self, sql):
        """The single value of a query of one row and one column."""
        rows = self.query(sql)
        assert len(rows) == 1 and len(rows[0]) == 1, f"one value expected of: {sql}"
        return rows[0][0]

    def row(self, sql):
        """The first row of a query as a dictionary, or None."""
        rows = self.query(sql)
        return dict(zip(self.columns, rows[0])) if rows else None

    def send(self, sql):
        """Sends a statement without waiting for its answer, for which `result` must be called."""
        self._sql = sql
        self._sequence = 0
        self._write(b"\x03" + sql.encode())

    def answered(self, seconds):
        """Whether the answer to what was sent arrives within that time."""
        # An answer is read whole before the next statement is sent, so none of it can wait in the input's buffer.
        return bool(select.select([self._socket], [], [], seconds)[0])

    def result(self):
        """Waits for the answer to what was sent."""
        first = self._read()
        if first[0] == 0:
            return _length(first, 1)[0]
        types, self.columns = [], []
        for _ in range(_length(first, 0)[0]):
            name, kind = _column(self._read())
            self.columns.append(name)
            types.append(kind)
        self._read()
        rows = []
        while True:
            packet = self._read()
            if packet[0] == 0xFE and len(packet) < 9:
                return rows
            rows.append(_row(packet, types))

    def _log_in(self, user, database):
        greeting = self._read()
        end = greeting.index(b"\0", 1)
        # MariaDB 10 hides its version behind one that old replicas accept.
        self.version = greeting[1:end].decode().removeprefix("5.5.5-")
        self.id = struct.unpack_from("<I", greeting, end + 1)[0]
        flags = LONG_PASSWORD | FOUND_ROWS | PROTOCOL_41 | TRANSACTIONS | SECURE_CONNECTION | PLUGIN_AUTH
        flags |= CONNECT_WITH_DB if database else 0
        body = struct.pack("<IIB23x", flags, 1 << 24, UTF8MB4) + user.encode() + b"\0" + b"\0"
        body += database.encode() + b"\0" if database else b""
        self._write(body + b"mysql_native_password\0")
        while self._read()[0] == 0xFE:
            self._write(b"")

    def _write(self, body):
        assert len(body) < 0xFFFFFF, "a statement of 16 MiB or more is not supported"
        try:
            self._socket.sendall(struct.pack("<I", len(body))[:3] + bytes([self._sequence]) + body)
        except OSError as e:
            raise ServerGone(str(e)) from e

    def _read(self):
        head = self._exactly(4)
        self._sequence = (head[3] + 1) & 0xFF
        body = self._exactly(head[0] | head[1] << 8 | head[2] << 16)
        if body[0] == 0xFF:
            code = struct.unpack_from("<H", body, 1)[0]
            text = body[9:] if body[3:4] == b"#" else body[3:]
            raise SqlError(code, text.decode(errors="replace"), self._sql)
        return body

    def _exactly(self, length):
        try:
            data = self._input.read(length)
        except OSError as e:
            raise ServerGone(str(e)) from e
        if len(data) < length:
            raise ServerGone("the server closed the connection")
        return data


def _length(data, at):
    """A length-encoded integer and where it ends; None stands for NULL."""
    first = data[at]
    if first < 0xFB:
        return first, at + 1
    if first == 0xFB:
        return None, at + 1
    size = {0xFC: 2, 0xFD: 3, 0xFE: 8}[first]
    return int.from_bytes(data[at + 1:at + 1 + size], "little"), at + 1 + size


def _column(packet):
    at, fields = 0, []
    for _ in range(6):
        size, at = _length(packet, at)
        fields.append(packet[at:at + size])
        at += size
    return fields[4].decode(), packet[at + 1 + 2 + 4]


def _row(packet, types):
    at, values = 0, []
    for kind in types:
        size, at = _length(packet, at)
        if size is None:
            values.append(None)
            continue
        text = packet[at:at + size].decode(errors="surrogateescape")
        at += size
        whole = kind in INTEGER_TYPES or (kind in DECIMAL_TYPES and "." not in text)
        values.append(int(text) if whole else text)
    return tuple(values)

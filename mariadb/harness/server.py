"""Private MariaDB servers: own data directory, own socket, a free loopback port, gone when the program ends."""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .wire import Connection, ServerGone, SqlError

START_SECONDS = 120
STOP_SECONDS = 120
ACCESS_DENIED_ERRORS = {1044, 1045}


class HarnessError(Exception):
    """Something that a test stands on does not work: a server that does not start, a replica that stops."""


def say(text):
    """Progress, for people."""
    print(text, file=sys.stderr, flush=True)


def free_port():
    """A TCP port of the loopback interface that no process listens on now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Workspace:
    """A temporary directory with servers in it. As a context manager it stops them and removes everything, also when
    the program is interrupted or told to terminate. With `keep` the files stay."""

    def __init__(self, parent=None, keep=False):
        self._parent, self._keep = parent, keep
        self._servers = []

    def __enter__(self):
        for program in ("mariadbd", "mariadb-install-db"):
            if not find_program(program):
                raise SystemExit(f"{program} is missing: run mariadb/setup packages")
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        self.path = Path(tempfile.mkdtemp(prefix="kingtide-sql-", dir=self._parent))
        return self

    def __exit__(self, *_):
        for server in self._servers:
            server.kill()
        if self._keep:
            say(f"kept: {self.path}")
        else:
            shutil.rmtree(self.path, ignore_errors=True)

    def keep_if(self, failed):
        """Leaves the files where they are, if there is something to look for in them."""
        self._keep = bool(failed)

    def server(self, name, engine, options=(), binlog=False, server_id=1, template=None):
        """A new server with an empty data directory, or a copy of one that is given, not started."""
        server = Server(self.path / name, template or self._template(), engine, options, binlog, server_id)
        self._servers.append(server)
        return server

    def remove(self, server):
        """Kills a server and removes its files."""
        server.kill()
        shutil.rmtree(server.home, ignore_errors=True)
        self._servers.remove(server)

    def _template(self):
        """System tables take seconds to make, so they are made once and copied."""
        template = self.path / "template"
        if not template.exists():
            command = ["mariadb-install-db", "--no-defaults", f"--user={getpass.getuser()}", f"--datadir={template}",
                       "--auth-root-authentication-method=normal", "--skip-test-db", "--innodb-log-file-size=8M"]
            environment = {**os.environ, "TMPDIR": str(self.path)}
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if done.returncode:
                raise HarnessError(f"mariadb-install-db failed:\n{done.stdout[-2000:]}")
        return template


def find_program(name):
    """Servers live in sbin, which ordinary users' search paths may lack."""
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


class Server:
    """One server process and its files."""

    def __init__(self, home, template, engine, options, binlog, server_id):
        self.home, self.engine, self.server_id, self.binlog = home, engine, server_id, binlog
        self.data, self.logs, self.errors = home / "data", home / "binlog", home / "error.log"
        # A socket's path must be short, which a temporary directory's need not be.
        self.socket = str(home / "s")
        if len(self.socket) > 100:
            raise HarnessError(f"the path {self.socket} is too long for a socket; choose another --dir")
        self.port = None
        self._options, self._process = list(options), None
        home.mkdir()
        self.logs.mkdir()
        shutil.copytree(template, self.data)

    def command(self):
        """The command line of the server."""
        line = [find_program("mariadbd"), "--no-defaults", f"--user={getpass.getuser()}", f"--datadir={self.data}",
                f"--socket={self.socket}", f"--port={self.port}", "--bind-address=127.0.0.1",
                f"--tmpdir={self.home}", f"--log-error={self.errors}", f"--pid-file={self.home / 'pid'}",
                f"--server-id={self.server_id}", "--skip-name-resolve", f"--default-storage-engine={self.engine.name}"]
        # As Debian configures its servers.
        line += ["--character-set-server=utf8mb4", "--collation-server=utf8mb4_general_ci"]
        if self.binlog:
            line += [f"--log-bin={self.logs / 'log'}", f"--relay-log={self.logs / 'relay'}", "--binlog-format=ROW",
                     "--sync-binlog=1", "--log-slave-updates", "--gtid-strict-mode=1"]
        # A server must not outlive a test that was killed.
        guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        return guard + line + self._options

    def start(self, wait=True):
        """Starts the server, and waits until it answers."""
        self.port = self.port or free_port()
        with open(self.errors, "ab") as log:
            self._process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        if wait:
            self.await_start()
        return self

    def await_start(self):
        """Waits until the server answers."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return self.connect().close()
            except ServerGone:
                pass
            if self._process.poll() is not None:
                raise HarnessError(f"the server ended with {self._process.returncode}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise HarnessError(f"the server did not start in {START_SECONDS} s:\n{self.log_tail()}")
            time.sleep(0.02)

    def connect(self, database=None, timeout=300):
        """A new session."""
        return Connection(self.socket, database=database, timeout=timeout)

    @property
    def pid(self):
        """The process id of the running server."""
        return self._process.pid

    def running(self):
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def kill(self):
        """SIGKILL: what was not written to files is lost."""
        if self.running():
            self._process.kill()
        if self._process:
            self._process.wait()

    def stop(self):
        """Orderly shutdown."""
        if self.running():
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
                raise HarnessError(f"the server did not stop in {STOP_SECONDS} s:\n{self.log_tail()}") from None

    def log_tail(self, lines=30):
        """The end of the server's error log."""
        try:
            return "\n".join(self.errors.read_text(errors="replace").splitlines()[-lines:])
        except OSError as e:
            return f"no error log: {e}"

    def replicate_from(self, primary):
        """Follows another server from the beginning of its binlog, by GTID."""
        with self.connect() as c:
            c.query(f"CHANGE MASTER TO master_host='127.0.0.1', master_port={primary.port}, master_user='replica', "
                    "master_password='', master_use_gtid=slave_pos, master_connect_retry=1")
            c.query("START SLAVE")

    def catch_up(self, primary, seconds=120):
        """Waits until everything in the primary's binlog was applied here."""
        with primary.connect() as c:
            position = c.value("SELECT @@gtid_binlog_pos")
        with self.connect() as c:
            deadline = time.monotonic() + seconds
            while c.value(f"SELECT MASTER_GTID_WAIT('{position}', 1)") != 0:
                status = c.row("SHOW SLAVE STATUS")
                error = status["Last_SQL_Error"] or (status["Slave_IO_Running"] == "No" and status["Last_IO_Error"])
                if error:
                    raise HarnessError(f"the replica stopped: {error}")
                if time.monotonic() > deadline:
                    applied = c.value("SELECT @@gtid_slave_pos")
                    raise HarnessError(f"the replica is at {applied} after {seconds} s, not at {position}: {status}")


def create_replication_user(primary):
    """The account that replicas log in with."""
    with primary.connect() as c:
        c.query("CREATE USER replica@'127.0.0.1' IDENTIFIED BY ''")
        c.query("GRANT REPLICATION SLAVE ON *.* TO replica@'127.0.0.1'")


# Without NO_ENGINE_SUBSTITUTION, so that a replica may keep in another engine what names the primary's.
PAIR_SQL_MODE = "--sql-mode=STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO"


def start_pair(workspace, engine, replica_engine, options=(), replica_options=()):
    """A primary and a replica that follows it, both with row binlogs. The database `test` exists on both. Tables are in
    each server's default engine, also where a statement names the primary's."""
    primary = workspace.server("primary", engine, [PAIR_SQL_MODE, *options], binlog=True, server_id=1).start()
    other_engine = [f"--enforce-storage-engine={replica_engine.name}", *replica_options]
    replica = workspace.server("replica", replica_engine, other_engine, binlog=True, server_id=2).start()
    create_replication_user(primary)
    with primary.connect() as c:
        c.query("CREATE DATABASE test")
    replica.replicate_from(primary)
    replica.catch_up(primary)
    return primary, replica


def require_engine(server, tables, database="test"):
    """A server that lacks an engine may have put tables into another: that would test the wrong thing."""
    with server.connect(database) as c:
        for table in tables:
            found = c.query(f"SELECT engine FROM information_schema.tables WHERE table_schema = '{database}' "
                            f"AND table_name = '{table}'")
            if not found or (found[0][0] or "").lower() != server.engine.name:
                raise HarnessError(f"{table} is in the engine {found[0][0] if found else '(there is no such table)'}, "
                                   f"not in {server.engine.name}")


def checksums(server, tables, database="test"):
    """`CHECKSUM TABLE` of tables, by name: independent of the order of rows and of the engine."""
    with server.connect(database) as c:
        rows = c.query("CHECKSUM TABLE " + ", ".join(tables) + " EXTENDED")
    return {name.split(".", 1)[1]: checksum for name, checksum in rows}


def check_tables(server, tables, database="test"):
    """What `CHECK TABLE ... EXTENDED` has to complain about, as a list of texts."""
    with server.connect(database) as c:
        rows = c.query("CHECK TABLE " + ", ".join(tables) + " EXTENDED")
    return [f"{t}: {kind}: {text}" for t, _, kind, text in rows if (kind, text) != ("status", "OK")]


def index_complaints(session, table, index, columns):
    """Whether a secondary index and the primary data tell the same story."""
    sums = [session.query(f"SELECT COUNT(*), BIT_XOR(CRC32(CONCAT_WS('-', {columns}))) FROM {table} FORCE INDEX ({i})")
            for i in ("PRIMARY", index)]
    return [] if sums[0] == sums[1] else [f"{table}: read by primary key {sums[0]}, read by {index} {sums[1]}"]


__all__ = ["HarnessError", "Server", "ServerGone", "SqlError", "Workspace", "check_tables", "checksums",
           "create_replication_user", "find_program", "free_port", "index_complaints",
           "require_engine", "say", "start_pair"]

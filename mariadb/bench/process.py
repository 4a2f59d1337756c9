"""What a process used, from /proc: CPU, bytes to and from storage, memory."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
QUIET_CPU_SHARE = 0.03
QUIET_SECONDS = 0.5


@dataclass(frozen=True)
class Usage:
    """Since the process began, or between two moments."""

    cpu_seconds: float
    bytes_written: int
    bytes_read: int

    def __sub__(self, earlier):
        return Usage(self.cpu_seconds - earlier.cpu_seconds, self.bytes_written - earlier.bytes_written,
                     self.bytes_read - earlier.bytes_read)


def usage(pid):
    """What the process used until now. Bytes are those that reached the block layer; those of a file that was deleted
    before it was written back are counted too."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    io = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return Usage((int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND, int(io["write_bytes"]), int(io["read_bytes"]))


def forget_peak_memory(pid):
    """Makes `peak_memory` count from now on."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_memory(pid):
    """The largest resident set in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def memory(pid):
    """What the process occupies, in bytes, by the names of smaps_rollup: `Rss`, `Anonymous`, `AnonHugePages` and others."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}


SYNCS = "fsync,fdatasync,msync,sync_file_range"
TRACE_SECONDS = 10


def syncs(pid, work):
    """How often the process syncs files while `work()` runs. None if that cannot be counted here: without strace, or where a
    process may not be traced."""
    if not shutil.which("strace"):
        return None
    with tempfile.NamedTemporaryFile("r") as found:
        command = ["strace", "-f", "-q", "-e", f"trace={SYNCS}", "-e", "signal=none", "-o", found.name, "-p", str(pid)]
        tracer = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + TRACE_SECONDS
        while not _all_traced(pid, tracer.pid):
            if tracer.poll() is not None or time.monotonic() > deadline:
                tracer.kill()
                tracer.wait()
                return None
            time.sleep(0.02)
        work()
        tracer.send_signal(signal.SIGINT)
        tracer.wait()
        return len(re.findall(r"\b(?:fsync|fdatasync|msync|sync_file_range)\(", found.read()))


def _all_traced(pid, tracer):
    """Whether each thread is traced by this one: those that begin later are from their beginning."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            if f"TracerPid:\t{tracer}\n" not in (task / "status").read_text():
                return False
        except FileNotFoundError:
            pass  # it ended
    return True


def await_quiet(pid, limit):
    """Waits until the process does next to nothing any more, `limit` seconds at most. Returns how long that took."""
    started = time.monotonic()
    while (elapsed := time.monotonic() - started) < limit:
        before = usage(pid).cpu_seconds
        time.sleep(QUIET_SECONDS)
        if usage(pid).cpu_seconds - before <= QUIET_CPU_SHARE * QUIET_SECONDS:
            break
    return elapsed


def directory_bytes(path):
    """What the files of a directory occupy; files that vanish meanwhile do not count."""
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            try:
                total += os.stat(os.path.join(folder, name)).st_blocks * 512
            except FileNotFoundError:
                pass
    return total

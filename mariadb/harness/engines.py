"""The storage engines under comparison: how each is loaded, given its memory, and made durable or deliberately not."""

import os
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PLUGIN_DIRECTORY = Path(os.environ.get("KINGTIDE_MARIADB_BUILD", REPOSITORY / "target" / "mariadb")) / "plugin"
DEBIAN_PLUGINS = Path("/usr/lib/mysql/plugin")

# System tables want InnoDB even where another engine is measured; then it gets next to no memory.
IDLE_INNODB = ("--innodb-buffer-pool-size=8M", "--innodb-log-file-size=8M")


@dataclass(frozen=True)
class Engine:
    """One engine. `memory` is the option for the size of its cache in bytes, `lossy` what lets a crash lose commits,
    `savepoints` whether changes can be rolled back to one, `serializable` whether it has that level, `detect_deadlocks`
    what makes it notice deadlocks, if it does not do so by default."""

    name: str
    memory: str
    durable: tuple
    lossy: tuple
    lock_wait_timeout: str
    plugin: Path = None
    load: tuple = ()
    savepoints: bool = True
    serializable: bool = True
    detect_deadlocks: tuple = ()

    @property
    def missing(self):
        """Why the engine cannot be used here, or None."""
        if self.plugin and not self.plugin.exists():
            return f"{self.plugin} does not exist"
        return None

    def options(self, cache_bytes, durable=True):
        """Command line of a server in which only this engine has memory worth the name."""
        idle = () if self.name == "innodb" else IDLE_INNODB
        commits = self.durable if durable else self.lossy
        return [*self.load, *idle, f"{self.memory}={cache_bytes}", *commits]


ENGINES = {
    e.name: e
    for e in (
        Engine(
            name="innodb",
            memory="--innodb-buffer-pool-size",
            durable=("--innodb-flush-log-at-trx-commit=1",),
            lossy=("--innodb-flush-log-at-trx-commit=0",),
            lock_wait_timeout="innodb_lock_wait_timeout",
        ),
        Engine(
            name="rocksdb",
            memory="--rocksdb-block-cache-size",
            durable=("--rocksdb-flush-log-at-trx-commit=1",),
            lossy=("--rocksdb-flush-log-at-trx-commit=0",),
            lock_wait_timeout="rocksdb_lock_wait_timeout",
            plugin=DEBIAN_PLUGINS / "ha_rocksdb.so",
            load=("--plugin-load-add=ha_rocksdb.so",),
            savepoints=False,
            serializable=False,
            detect_deadlocks=("--rocksdb-deadlock-detect=ON",),
        ),
        # Options carry the prefix `loose-` so that a plugin that does not know one of them yet still starts.
        Engine(
            name="kingtide",
            memory="--loose-kingtide-cache-size",
            durable=("--loose-kingtide-flush-log-at-trx-commit=1",),
            lossy=("--loose-kingtide-flush-log-at-trx-commit=0",),
            lock_wait_timeout="kingtide_lock_wait_timeout",
            plugin=PLUGIN_DIRECTORY / "ha_kingtide.so",
            load=(f"--plugin-dir={PLUGIN_DIRECTORY}", "--plugin-maturity=experimental",
                  "--plugin-load-add=ha_kingtide.so"),
        ),
    )
}


def choose(names):
    """The engines of a comma-separated list; unknown ones end the program."""
    chosen = []
    for name in names.split(","):
        if name not in ENGINES:
            raise SystemExit(f"unknown engine '{name}': there are {', '.join(ENGINES)}")
        chosen.append(ENGINES[name])
    return chosen

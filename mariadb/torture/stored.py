"""What Kingtide's dictionary and rows say of themselves, read with `kt` while the server is down: mariadb/src/dictionary.h and
mariadb/codec/table_record.h describe it."""

import json
import os
import re
import shutil
import subprocess

from harness.engines import REPOSITORY

PRIMARY, KEYS = 1, 2  # tags of a table's record
ESCAPED = re.compile(rb"\\(x[0-9a-f]{2}|.)")
LETTERS = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"0": b"\0"}


def find_kt():
    """The tool, or None: then its checks are left out."""
    built = [str(REPOSITORY / "target" / kind / "kt") for kind in ("release", "debug")]
    found = [os.environ.get("KINGTIDE_KT"), shutil.which("kt"), *built]
    return next((f for f in found if f and os.access(f, os.X_OK)), None)


def scan(kt, database, family):
    """All entries of a family."""
    done = subprocess.run([kt, "--json", "scan", str(database), "--family", family], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise OSError(f"kt scan of {family}: {done.stderr.strip()}")
    for line in done.stdout.splitlines():
        entry = json.loads(line)
        yield _bytes(entry["key"]), _bytes(entry["value"])


def put(kt, data, key):
    """Plants an entry that belongs to no table."""
    subprocess.run([kt, "put", str(data / "#kingtide"), "".join(f"\\x{b:02x}" for b in key), "x", "--family", "rows"],
                   check=True, stdout=subprocess.DEVNULL)


def _bytes(text):
    def one(match):
        code = match.group(1)
        return bytes([int(code[1:], 16)]) if code[:1] == b"x" else LETTERS.get(code, code)

    return ESCAPED.sub(one, text.encode())


def _varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def indexes(record):
    """The numbers of a table's indexes."""
    if record[0] != 2:
        raise ValueError(f"a record of version {record[0]}")
    found, at = set(), 1
    while at < len(record):
        tag, at = _varint(record, at)
        size, at = _varint(record, at)
        field, at = record[at:at + size], at + size
        if tag == PRIMARY:
            found.add(_varint(field, 0)[0])
        elif tag == KEYS:
            count, place = _varint(field, 0)
            for _ in range(count):
                number, place = _varint(field, place)
                found.add(number)
    return found


def complaints(kt, data, database="test"):
    """How definition files, dictionary and rows differ, in the data directory of a server that is down."""
    tables, counted, next_number = {}, set(), 0
    for key, value in scan(kt, data / "#kingtide", "default"):
        if key[:1] == b"t":
            tables[key[1:].decode()] = indexes(value)
        elif key == b"n":
            next_number = int.from_bytes(value, "big")
        elif key[:1] in b"ahc":
            counted.add(int.from_bytes(key[1:5], "big"))
    files = {f.name for f in (data / database).iterdir()}
    recorded = {name.split("/", 1)[1].split("#P#")[0] for name in tables if name.startswith(database + "/")}
    defined = {f[:-4] for f in files if f.endswith(".frm")}
    known = set().union(*tables.values())
    used = {int.from_bytes(key[:4], "big") for key, _ in scan(kt, data / "#kingtide", "rows")}
    wrong = [f"{n} is in the dictionary and has no .frm" for n in sorted(recorded - defined)]
    wrong += [f"{n}.frm is there, and the dictionary does not know the table" for n in sorted(defined - recorded)]
    wrong += [f"the file {f} was left over" for f in sorted(files) if f.startswith("#sql")]
    wrong += [f"the table {n} was left over" for n in sorted(tables) if "#sql" in n]
    wrong += [f"index {n} has entries and belongs to no table" for n in sorted(used - known)]
    wrong += [f"index {n} has a counter and belongs to no table" for n in sorted(counted - known)]
    wrong += [f"index {n} was not given out yet: the next is {next_number}" for n in sorted(known) if n >= next_number]
    if sum(map(len, tables.values())) != len(known):
        wrong.append("an index belongs to several tables")
    return wrong

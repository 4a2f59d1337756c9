"""Reads the conformance table: `conformance/README.md` says what its lines mean."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

DIRECTORY = Path(__file__).resolve().parents[2] / "conformance"


@dataclass
class Step:
    line: int
    operation: list[bytes]
    answer: list[bytes]


@dataclass
class Case:
    file: str
    name: str
    steps: list[Step]


def read() -> list[Case]:
    cases: list[Case] = []
    for path in sorted(DIRECTORY.glob("*.jsonl")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if not line:
                continue
            words = [word.encode("latin-1") for word in json.loads(line)]
            if words[0] == b"case" and len(words) == 2:
                cases.append(Case(path.stem, words[1].decode(), []))
            else:
                arrow = words.index(b"=>")
                cases[-1].steps.append(Step(number, words[:arrow], words[arrow + 1 :]))
    return cases

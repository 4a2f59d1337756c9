"""Runs every Python block of the book's page and of the package's README, each in a directory of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = [
    (page, number, code)
    for page in ("docs/python.md", "python/README.md")
    for number, code in enumerate(re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL))
]


def test_there_are_blocks() -> None:
    assert len(BLOCKS) >= 8


@pytest.mark.parametrize(("page", "number", "code"), BLOCKS, ids=[f"{page}-{number}" for page, number, _ in BLOCKS])
def test_block(page: str, number: int, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, f"block {number} of {page}", "exec"), {"__name__": "__main__"})

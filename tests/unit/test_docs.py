"""What the documentation names exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/decisions").glob("*.md"))]
FILE = re.compile(
    r"`((?:strata|native|plugins|tests|tools|docs|configs)/[\w./-]+\.(?:py|cpp|h|cu|cuh|md|yaml|sh|txt|json))`"
)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_named_file_exists(page):
    text = page.read_text()
    named = [ROOT / name for name in FILE.findall(text) if "NAME" not in name] + [
        page.parent / name for name in LINK.findall(text)
    ]
    missing = [str(path) for path in named if not path.exists()]
    assert not missing


def test_the_walk_has_ten_steps_with_files():
    steps = re.split(r"\n(?=\d+\. )", (ROOT / "docs/architecture.md").read_text().split("\n## ")[0])[1:]
    assert len(steps) == 10
    assert all(FILE.search(step) for step in steps)


def test_decisions_are_numbered_without_gaps():
    numbers = [int(path.name[:4]) for path in sorted((ROOT / "docs/decisions").glob("*.md"))]
    assert numbers == list(range(1, len(numbers) + 1))

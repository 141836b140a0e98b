"""Writes requirements.txt and build-requirements.txt: the part of requirements/lock.txt that the image needs.

    .venv/bin/python deploy/image/requirements.py

Works out what is needed from the packages that are installed, so run it in the environment of `make setup`.
"""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
#: Extras of tracecore that are part of the image, where the lock has them.
EXTRAS = ("gpu", "server", "postgres", "mcp", "kafka")


def name_of(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def lock() -> dict[str, str]:
    """The lock's entries, by name."""
    text = (ROOT / "requirements" / "lock.txt").read_text()
    entries = re.findall(r"^(?:\S+==.*\n(?: +.*\n)*)", text, re.MULTILINE)
    return {name_of(entry.partition("==")[0].partition("[")[0]): entry for entry in entries}


def closure(wanted: list[str]) -> set[str]:
    """These packages and what they need, on the system of the image."""
    found: set[str] = set()
    left = [Requirement(text) for text in wanted]
    done: set[tuple[str, str]] = set()
    while left:
        one = left.pop()
        extras = one.extras or {""}
        found.add(name_of(one.name))
        for extra in extras:
            if (name_of(one.name), extra) in done:
                continue
            done.add((name_of(one.name), extra))
            for text in distribution(one.name).requires or ():
                needed = Requirement(text)
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    left.append(needed)
    return found


def wanted() -> dict[str, list[str]]:
    """What each file begins with."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    locked = lock()
    extras = [text for extra in EXTRAS for text in project["project"]["optional-dependencies"].get(extra, ())]
    return {
        "requirements.txt": project["project"]["dependencies"]
        + [text for text in extras if name_of(Requirement(text).name) in locked],
        "build-requirements.txt": project["build-system"]["requires"],
    }


def files() -> dict[str, str]:
    """The files, by name."""
    locked = lock()
    return {
        name: "# Written by requirements.py from requirements/lock.txt.\n"
        + "".join(locked[package] for package in sorted(closure(texts)))
        for name, texts in wanted().items()
    }


if __name__ == "__main__":
    for name, text in files().items():
        (HERE / name).write_text(text)

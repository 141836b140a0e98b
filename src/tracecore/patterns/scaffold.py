"""Create the folder of a new pattern with all its files. Its cases run, and fail until the detector is written."""

from __future__ import annotations

import keyword
from pathlib import Path
from string import Template

import re2

#: The files of a new pattern, with `${name}`, `${Name}` and `${id}` to fill in.
TEMPLATES = Path(__file__).parent / "template"


def create(into: Path, name: str, ident: str) -> Path:
    """Make the folder of a new pattern.

    Args:
        into: where the folder goes.
        name: of the pattern and of its folder.
        ident: its id.

    Raises:
        ValueError: the name is not lower_case, the id is not valid, or the folder exists.
    """
    if not re2.fullmatch(r"[a-z][a-z0-9_]{1,40}", name):
        raise ValueError(f"`{name}`: a pattern's name is lower-case letters, digits and underscores")
    if keyword.iskeyword(name):
        raise ValueError(f"`{name}`: Python has another meaning for this word")
    if not re2.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,40}", ident):
        raise ValueError(f"`{ident}`: an id is letters, digits, dots and dashes")
    home = into / name
    if home.exists():
        raise ValueError(f"{home} exists")
    (home / "cases").mkdir(parents=True)
    values = {"name": name, "id": ident, "Name": "".join(part.capitalize() for part in name.split("_"))}
    (home / "__init__.py").touch()
    for template in TEMPLATES.rglob("*.template"):
        path = home / template.relative_to(TEMPLATES).with_suffix("")
        path.write_text(Template(template.read_text("utf-8")).substitute(values), encoding="utf-8")
    return home

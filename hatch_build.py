"""Compiles the optional part of the package (`tracecore.signals.compiled`) where there is a C compiler.

Without one, or where it fails, the package is the same and slower. `python hatch_build.py` compiles in place.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from zlib import crc32

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

PLACE = Path("src/tracecore/signals/compiled")
FLAGS = ("-std=c99", "-O3", "-fPIC", "-shared", "-ffp-contract=off")
#: Seconds; it takes less than one.
LIMIT = 60


def command(source: Path, library: Path) -> list[str]:
    """Return the compiler's command line."""
    compiler = shlex.split(os.environ.get("CC") or "cc")
    return [*compiler, *FLAGS, f"-DSOURCE={crc32(source.read_bytes())}u", "-o", str(library), str(source)]


def compile_part(root: Path) -> Path | None:
    """Compile the library into the package; None where that is not possible, and then there is none."""
    library = root / PLACE / "lines.so"
    if os.environ.get("TRACECORE_PURE_PYTHON"):
        library.unlink(missing_ok=True)
        return None
    # Renamed into its place: a process that uses the old one keeps it.
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / library.name
        try:
            subprocess.run(command(library.with_suffix(".c"), made), check=True, capture_output=True, timeout=LIMIT)
        except (OSError, subprocess.SubprocessError):
            library.unlink(missing_ok=True)
            return None
        made.replace(library)
    return library


class CompiledPart(BuildHookInterface[Any]):
    """Adds the library to a wheel, which is one for this kind of machine then."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        library = compile_part(Path(self.root))
        if library is not None:
            platform = next(tag for tag in platform_tags() if not tag.startswith(("manylinux", "musllinux")))
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform}"
            build_data["artifacts"].append(str(library.relative_to(self.root)))


if __name__ == "__main__":
    sys.exit(0 if compile_part(Path(__file__).parent) else "no compiler, or it failed: the package works without")

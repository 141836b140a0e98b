"""Puts together the files of the image: an interpreter, the package, journalctl, and the libraries that they load.

python3 deploy/image/rootfs.py /rootfs
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

PLACE = Path("/opt/tracecore")
PROGRAMS = (Path(os.path.realpath("/usr/bin/python3")), Path("/usr/bin/journalctl"))
STDLIB = Path(sysconfig.get_path("stdlib"))
#: Parts of the standard library that an agent has no use for.
UNUSED = (
    "ensurepip",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "tkinter",
    "turtledemo",
    "test",
    "tests",
    "venv",
    "distutils",
)
FILES = (Path("/etc/ssl/certs/ca-certificates.crt"), Path("/usr/share/zoneinfo"), Path("/etc/os-release"))
USER = 65532
ETC = {
    "passwd": f"root:x:0:0:root:/:/sbin/nologin\ntracecore:x:{USER}:{USER}::/var/lib/tracecore:/sbin/nologin\n",
    "group": f"root:x:0:\nadm:x:4:\ntracecore:x:{USER}:\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


def main(root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    for name in ("usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "etc", "proc", "sys", "dev", "run", "opt"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    shutil.copytree(PLACE, root / PLACE.relative_to("/"), symlinks=True)
    shutil.copytree(
        STDLIB, root / STDLIB.relative_to("/"), symlinks=True, ignore=shutil.ignore_patterns(*UNUSED, "config-*")
    )
    for program in PROGRAMS:
        copy(program, root)
    python = PROGRAMS[0]
    (root / "usr/bin/python3").symlink_to(python.name)
    for path in FILES:
        copy(path, root)
    binaries = [path for path in (root / "usr").rglob("*") if is_elf(path)]
    binaries += [path for path in (root / "opt").rglob("*.so*") if is_elf(path)]
    for library in libraries(binaries, root):
        copy(library, root)
    for name, text in ETC.items():
        (root / "etc" / name).write_text(text)
    for name, mode, owner in (("tmp", 0o1777, 0), ("var/lib/tracecore", 0o750, USER), ("etc/tracecore", 0o755, 0)):
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name).chmod(mode)
        os.chown(root / name, owner, owner)
    licences(root)


def copy(path: Path, root: Path) -> None:
    """A file or folder at its own place; a link together with what it points to."""
    # /lib and its like are links into /usr, here as there.
    place = Path(os.path.realpath(path.parent)) / path.name
    target = root / place.relative_to("/")
    if target.exists() or target.is_symlink():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        shutil.copy2(path, target, follow_symlinks=False)
        copy(Path(os.path.normpath(place.parent / os.readlink(path))), root)
    elif path.is_dir():
        shutil.copytree(path, target, symlinks=True)
    else:
        shutil.copy2(path, target)


def is_elf(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def libraries(binaries: list[Path], root: Path) -> list[Path]:
    """What these load, and what that loads. Libraries that a wheel brings along are found beside it, and stay there."""
    found: dict[str, None] = {}
    for path in binaries:
        said = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False).stdout
        if missing := re.findall(r"(\S+) => not found", said):
            sys.exit(f"{path}: {', '.join(missing)} cannot be found")
        # "name => /path (address)", or the loader: "/path (address)".
        found.update(dict.fromkeys(re.findall(r"(?:=> |^\s*)(/\S+) \(0x", said, re.MULTILINE)))
    return [Path(name) for name in found if not name.startswith(str(root))]


def licences(root: Path) -> None:
    """The terms of every Debian package a file came from."""
    names = [f"/{path.relative_to(root)}" for path in (root / "usr").rglob("*") if is_elf(path)]
    # The database of packages still knows many files by their place before /lib became a link.
    names += [name.removeprefix("/usr") for name in names]
    said = subprocess.run(["dpkg-query", "--search", *names], capture_output=True, text=True, check=False).stdout
    for package in sorted({line.partition(":")[0] for line in said.splitlines()}):
        terms = Path("/usr/share/doc") / package / "copyright"
        if terms.exists():
            copy(terms.resolve(), root)
            if terms.resolve() != terms:
                copy(terms, root)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Read the YAML files of rules and policies; what was parsed of those that ship with tracecore is kept on disk."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tracecore.positioned_yaml import At, YamlNode, read
from tracecore.recipes import prepared

_OURS = Path(__file__).resolve().parent


def load(path: Path) -> At:
    """Return the root of a file.

    Raises:
        FileError: it is no YAML, or empty.
    """
    data = path.read_bytes()
    if not path.is_relative_to(_OURS):
        return At(read(path, data), str(path))
    kept = prepared.keep(prepared.key(b"yaml", data), lambda: msgspec.msgpack.encode(read(path, data)))
    return At(msgspec.msgpack.decode(kept, type=YamlNode), str(path))

"""What the writer writes and the server expects: lines that prove that they are whole."""

from __future__ import annotations

_PAD = "the quick brown fox jumps over the lazy dog; " * 5


def line(stream: str, number: int) -> str:
    """The text of a numbered line: any two differ, and none is the beginning of another."""
    return f"{stream}/{number} {_PAD[: number * 7919 % 200]}|{number * 2654435761 & 0xFFFFFFFF:08x}"


def parsed(text: str) -> tuple[str, int] | None:
    """Stream and number of a line; None for one that is not whole."""
    name, _, rest = text.partition("/")
    number = rest.partition(" ")[0]
    if not number.isdigit() or text != line(name, int(number)):
        return None
    return name, int(number)

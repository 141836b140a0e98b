"""Why a pattern never fires: signs that records cannot be read as evidence, told once and counted.

Two mistakes are common: the line of a trainer stands inside a JSON document, so that no recipe sees a traceback in
it; and a stamped record does not say which GPU it is about, so that no fact can be made of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from tracecore.agent.printing import visible

log = logging.getLogger("tracecore.agent.patterndetector")

WRAPPED: Final = "json_wrapped_body"
UNPROJECTED: Final = "stamped_without_fact"
NAMELESS: Final = "device_without_gpu"
#: Records looked at of each batch, and how many must be wrapped before it is said.
SAMPLE: Final = 8
ENOUGH: Final = 20
#: Larger ones are not looked into.
MAX_BODY: Final = 64 << 10
#: Names under which loggers put the line itself.
_MESSAGE: Final = ("message", "msg", "log", "text", "event", "body", "@message")

#: What is about one GPU, and worth nothing without its bus id.
_OF_A_GPU: Final = ("hw.", "kernelevents.pcie_aer.", "tracecore.alert.pcie_rate_collapse.")


class Hints:
    """Looks at records in passing.

    Args:
        id: of the processor.
        note: counts events.
    """

    def __init__(self, id: str, note: Callable[[str], None]) -> None:
        self._id = id
        self._note = note
        self._wrapped = 0
        self._said: set[str] = set()

    def look(self, records: Sequence[Any]) -> None:
        """A few records of a batch, as they came."""
        for record in records[:SAMPLE]:
            body = record.get("body")
            if type(body) is str and body[:1] == "{" and (key := wrapped(body)):
                self._note(WRAPPED)
                self._wrapped += 1
                if self._wrapped >= ENOUGH:
                    self._once(
                        WRAPPED,
                        f'records are JSON text with the line in "{key}": detectors see the envelope, not the line. '
                        f"Take it out before: json_parser and move from attributes.{key} to body",
                    )

    def unprojected(self, attributes: Mapping[str, Any], stamps: frozenset[str], has_gpu: bool) -> None:
        """A stamped record of which no fact could be made."""
        self._note(UNPROJECTED)
        names = sorted(name for name in stamps.intersection(attributes) if name.startswith(_OF_A_GPU))
        if names and not has_gpu:
            text = f"no fact can be made of a record with {', '.join(names[:3])}: it does not say which GPU (gpu.id)"
            self._once(UNPROJECTED, text)

    def nameless(self, text: str) -> None:
        """A fact names a CUDA device, and which GPU that is is not certain."""
        self._note(NAMELESS)
        self._once(text.rpartition(": ")[2], text)

    def ahead(self, seconds: float, stream: tuple[Any, ...]) -> None:
        """A record of this stream is from the future."""
        if "ahead" not in self._said:
            self._said.add("ahead")
            whose = ", ".join(str(part) for part in stream if part)
            log.warning(
                "%s: records are %.0f s ahead of this machine's clock and are judged as of when they come: %s. "
                "Look at the clocks; the event records_ahead counts them",
                self._id, seconds, visible(whose[:300]),
            )  # fmt: skip

    def _once(self, what: str, text: str) -> None:
        if what not in self._said:
            self._said.add(what)
            log.warning("%s: %s; see docs/operations.md, “a pattern never fires”", self._id, text)


def wrapped(body: str) -> str:
    """The key under which a JSON document has a line of a log; empty where it is none."""
    if len(body) > MAX_BODY or body.rstrip()[-1:] != "}":
        return ""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return ""
    if not isinstance(document, dict):
        return ""
    return next((key for key in _MESSAGE if isinstance(document.get(key), str)), "")

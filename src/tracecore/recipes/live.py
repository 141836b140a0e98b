"""Choose the lines of followed files that can matter, before anything is parsed.

These are the lines that recipes may stamp (`plan`), with progress sampled (`sampling`), and the lines that complete
them: to recipes a traceback is one record, in a file it is many lines. Each file has its own selector. It remembers
earlier blocks, so that the borders of blocks do not matter.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tracecore.recipes.plan import LayerPlan, fresh
from tracecore.signals.logs import reader
from tracecore.signals.logs.assembly import Assembly, OpenBlock, shape_of
from tracecore.signals.logs.multiline import MAY_CONTINUE
from tracecore.signals.logs.selector import ALWAYS, Picked
from tracecore.signals.stream import Stream

if TYPE_CHECKING:
    from tracecore.signals.logs.dialects import Dialect
    from tracecore.signals.logs.selector import Selector

#: Files that are remembered. Sampling of a forgotten file starts again.
MAX_FILES: Final = 16_384

#: Lines that nearly every job writes.
_USUAL: Final = (
    "step 10/1000 | loss 2.1 | lr 3.0e-04",
    "Saving checkpoint at step 10 to /checkpoints/step_10",
    'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\nRuntimeError: step 1 loss 1',
)
_PREFIX: Final = b"[rank"


def warm(plan: LayerPlan) -> None:
    """Compile the statements for usual lines now, so that the first verdict does not wait for it."""
    for body in _USUAL:
        plan.run({"resource": {"attributes": {}}, "log": {"body": body, "attributes": {}, "time_unix_nano": 1}})


class LiveSelectors:
    """Selectors for the files of one receiver.

    Args:
        layer: of evidence; its recipes are used.
        container: the lines are wrapped by a container runtime.
        ranks: also select a line that names its rank, to learn which ranks write.
    """

    def __init__(self, layer: str, *, container: bool, ranks: bool = False) -> None:
        self._plan: LayerPlan = fresh(layer)
        self._layer = layer
        self._container = container
        self._ranks = ranks
        self._every = self._plan.every(_stream(layer, container))
        self._files: OrderedDict[int, Selector] = OrderedDict()
        warm(self._plan)
        self.of(-1)
        del self._files[-1]

    def of(self, file: int) -> Selector:
        """Return the selector of a file.

        Args:
            file: a number that identifies it.
        """
        found = self._files.get(file)
        if found is None:
            found = self._files[file] = LiveSelector(
                self._plan, self._layer, self._every, container=self._container, ranks=self._ranks
            )
            if len(self._files) > MAX_FILES:
                self._files.popitem(last=False)
        else:
            self._files.move_to_end(file)
        return found


class LiveSelector:
    """The selector of one file; see `LiveSelectors` for the other arguments.

    Args:
        every: picks all lines that recipes may stamp, without sampling.
    """

    def __init__(self, plan: LayerPlan, layer: str, every: Selector, *, container: bool, ranks: bool) -> None:
        stream = _stream(layer, container)
        self._plan = plan
        self._stream = stream
        self._select: Selector = plan.selector(stream, live=True)
        self._every = every
        self._docker: tuple[Selector, Selector] | None = None
        self._container = container
        self._ranks = ranks
        self._dialect: Dialect = reader.dialect(stream)
        self._open: Assembly[OpenBlock] = Assembly()
        #: The last picked line, not unwrapped yet. Nearly always the next line does not belong to it.
        self._pending = b""

    def __call__(self, block: bytes) -> Sequence[int] | None:
        picked = self._pick(block)
        if picked is None:
            return None
        if self._ranks:
            picked = self._with_rank(block, picked)
        if not picked and self._idle():
            return picked
        found = self._completed(block, picked)
        return Picked(found, picked.newlines) if isinstance(picked, Picked) else found

    def _pick(self, block: bytes) -> Sequence[int] | None:
        if self._container and block[:1] == b"{":
            if self._docker is None:
                wrapped = Stream(path="live", format="docker", layer=self._stream.layer, open=_nothing)
                self._docker = self._plan.selector(wrapped, live=True), self._plan.every(wrapped)
            select, every = self._docker
        else:
            select, every = self._select, self._every
        # Sampling always hands on the last line of a block, so a block of one line needs no sampling.
        one_line = block.find(b"\n", 0, -1) < 0
        return (every if one_line else select)(block)

    def _with_rank(self, block: bytes, picked: Sequence[int]) -> Sequence[int]:
        """Add a line that names its rank."""
        at = block.find(_PREFIX)
        return picked if at < 0 else Picked(sorted({*picked, at}), getattr(picked, "newlines", None))

    def _completed(self, data: bytes, picked: Sequence[int]) -> list[int]:
        """Return where the picked lines begin, and the lines that complete them."""
        out: list[int] = []
        position, index, count, size = 0, 0, len(picked), len(data)
        while position < size:
            while index < count and picked[index] < position:
                index += 1
            if self._idle():
                if index == count:
                    break
                # A picked position may be the line's own newline.
                position = max(position, data.rfind(b"\n", position, picked[index]) + 1)
            end = data.find(b"\n", position)
            if end < 0:
                end = size
            candidate = index < count and picked[index] <= end
            if self._continues(data[position:end], candidate) or candidate:
                out.append(position)
            position = end + 1
        return out

    def _idle(self) -> bool:
        """Whether no block is open that a line could belong to."""
        return self._open.idle and not self._pending

    def _continues(self, raw: bytes, candidate: bool) -> bool:
        """Return whether a line is part of an open block. Lines are only parsed where that is necessary."""
        if self._pending:
            if MAY_CONTINUE.search(raw) is not None:
                self._place(self._pending, True)
            self._pending = b""
        else:
            self._open.ended_message(raw)
        if self._idle():
            if candidate and any(opener in raw for opener in ALWAYS):
                return self._place(raw, True)
            self._pending = raw if candidate else b""
            return False
        return self._place(raw, candidate)

    def _place(self, raw: bytes, candidate: bool) -> bool:
        """Parse a line and return whether it is part of an open block. A candidate that is not may open one."""
        line = self._dialect(raw)
        if line.partial:
            return False  # a cut line is a candidate, and so is its rest
        joined, _ = self._open.place(line)
        if joined is None and candidate and line.text:
            self._open.add(OpenBlock(line, shape_of(line)))
        return joined is not None


def _stream(layer: str, container: bool) -> Stream:
    return Stream(path="live", format="cri" if container else "text", layer=layer, open=_nothing)


def _nothing() -> Any:
    raise OSError("a live stream has no file to open")

"""The choice of lines in followed files that can matter, made before anything is parsed.

What recipes select (`plan`), progress sampled (`sampling`), and the lines that complete what was selected: a traceback
is one thing to recipes and many lines of a file. Each file has a selector of its own, which remembers what it saw
last, so that it does not matter how the file's bytes fall into blocks.
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

#: Files that are remembered; of one that is forgotten, sampling begins anew.
MAX_FILES: Final = 16_384

#: What nearly every job says.
_USUAL: Final = (
    "step 10/1000 | loss 2.1 | lr 3.0e-04",
    "Saving checkpoint at step 10 to /checkpoints/step_10",
    'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\nRuntimeError: step 1 loss 1',
)
_PREFIX: Final = b"[rank"


def warm(plan: LayerPlan) -> None:
    """Compiles the statements that are needed for what is usual: not while somebody waits for a verdict."""
    for body in _USUAL:
        plan.run({"resource": {"attributes": {}}, "log": {"body": body, "attributes": {}, "time_unix_nano": 1}})


class LiveSelectors:
    """Selectors for the files of one receiver.

    Args:
        layer: of evidence: whose recipes.
        container: lines have a container runtime's wrapping.
        ranks: somebody wants to know which ranks speak, also where no recipe can do anything with what they say.
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
        """The selector of a file.

        Args:
            file: a number that stays with it.
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
    """The selector of one file; arguments as of `LiveSelectors`.

    Args:
        every: picks all lines that can get a stamp.
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
        #: A picked line that is not unwrapped yet: nearly always nothing follows that could belong to it.
        self._alone = b""

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
        # The last line of a block is never left out: of one that comes alone only matters whether it says anything.
        alone = block.find(b"\n", 0, -1) < 0
        return (every if alone else select)(block)

    def _with_rank(self, block: bytes, picked: Sequence[int]) -> Sequence[int]:
        """Also a line that names its rank."""
        at = block.find(_PREFIX)
        return picked if at < 0 else Picked(sorted({*picked, at}), getattr(picked, "newlines", None))

    def _completed(self, data: bytes, picked: Sequence[int]) -> list[int]:
        """Where the picked lines begin, and those that complete them."""
        out: list[int] = []
        position, index, count, size = 0, 0, len(picked), len(data)
        while position < size:
            while index < count and picked[index] < position:
                index += 1
            if self._idle():
                if index == count:
                    break
                # The place may be the line's own newline.
                position = max(position, data.rfind(b"\n", position, picked[index]) + 1)
            end = data.find(b"\n", position)
            if end < 0:
                end = size
            candidate = index < count and picked[index] <= end
            if self._look(data[position:end], candidate) or candidate:
                out.append(position)
            position = end + 1
        return out

    def _idle(self) -> bool:
        """Nothing is open that a line could belong to."""
        return self._open.idle and not self._alone

    def _look(self, raw: bytes, candidate: bool) -> bool:
        """Whether a line is part of what is open, found out with as little work as will do."""
        if self._alone:
            if MAY_CONTINUE.search(raw) is not None:
                self._belongs(self._alone, True)
            self._alone = b""
        else:
            self._open.ended_message(raw)
        if self._idle():
            if candidate and any(opener in raw for opener in ALWAYS):
                return self._belongs(raw, True)
            self._alone = raw if candidate else b""
            return False
        return self._belongs(raw, candidate)

    def _belongs(self, raw: bytes, candidate: bool) -> bool:
        """Whether a line is part of an open block; a candidate that is not may open one."""
        line = self._dialect(raw)
        if line.partial:
            return False  # a part of a line is a candidate, and what completes it follows it
        joined, _ = self._open.place(line)
        if joined is None and candidate and line.text:
            self._open.add(OpenBlock(line, shape_of(line)))
        return joined is not None


def _stream(layer: str, container: bool) -> Stream:
    return Stream(path="live", format="cri" if container else "text", layer=layer, open=_nothing)


def _nothing() -> Any:
    raise OSError("a live stream has no file to open")

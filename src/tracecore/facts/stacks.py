"""Read the position of a running process from a stack printed by Python's faulthandler or by py-spy.

Both print the innermost frame first. Only the main thread counts: faulthandler prints it last, py-spy names it.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import re2

from tracecore.facts.tracebacks import LIBRARIES, Frame, user_code

#: Characters to read, from the end. Printers cut the stack of a deep recursion themselves.
MAX_CHARS = 65_536

_THREAD = re2.compile(
    r'(?m)^[ \t]*(?:Current thread|Thread) (?:0x[0-9a-f]+|\d+)[^\n]*(?:\(most recent call first\):|\): "([^"\n]*)")'
)
_FRAME = re2.compile(
    r'(?m)^[ \t]+(?:File "([^"\n]+)", line (\d{1,9}) in ([^\n]+)|([^\s(][^\n(]*) \(([^\n()]+):(\d{1,9})\))[ \t]*$'
)
#: First parts of paths that are not user code. py-spy leaves out the folders in which Python searches for modules.
_PACKAGES = sys.stdlib_module_names.union(
    LIBRARIES, ("pandas", "pyarrow", "fsspec", "s3fs", "urllib3", "requests", "botocore")
)


#: Modules whose functions wait for the other ranks.
_COLLECTIVES = re2.compile(
    r"(?:^|/)(?:torch/distributed/(?:distributed_c10d|_functional_collectives|c10d_logger)|deepspeed/comm/\w+"
    r"|horovod/\w+/(?:mpi_ops|functions)|jax/experimental/multihost_utils|oneccl_bindings_for_pytorch/\w+)\.py$"
)
#: Modules whose functions return the next batch.
_LOADERS = re2.compile(
    r"(?:^|/)(?:torch/utils/data/dataloader|tensorflow/python/data/ops/iterator_ops|nvidia/dali/plugin/\w+"
    r"|grain/_src/python/data_loader|ray/data/iterator)\.py$"
)


class Standing(NamedTuple):
    """The position of a thread.

    Args:
        frame: innermost frame in user code; None if there is none.
        inner: the innermost function, which may be of a library.
        waits: it is in a collective.
        loads: it asks a loader for the next batch.
    """

    frame: Frame | None
    inner: str
    waits: bool = False
    loads: bool = False


def parse(text: str) -> Standing | None:
    """Return the position of the main thread; None if the text has no stack."""
    text = text[-MAX_CHARS:]
    threads = list(_THREAD.finditer(text))
    if not threads:
        return None
    chosen = next(
        (number for number, thread in enumerate(threads) if thread.group(1) == "MainThread"), len(threads) - 1
    )
    end = threads[chosen + 1].start() if chosen + 1 < len(threads) else len(text)
    frames = [_frame(match) for match in _FRAME.finditer(text[threads[chosen].end() : end])]
    if not frames:
        return None
    own = next((frame for frame in frames if _own(frame.file)), None)
    waits = _COLLECTIVES.search(frames[0].file) is not None
    loads = any(_LOADERS.search(frame.file) for frame in frames)
    return Standing(own, frames[0].function or "", waits, loads)


def _frame(match: re2._Match) -> Frame:
    file, line, function, other_function, other_file, other_line = match.groups()
    if file is not None:
        return Frame(file, int(line), function)
    return Frame(other_file, int(other_line), other_function)


def _own(file: str) -> bool:
    first = file.partition("/")[0].removesuffix(".py")
    return user_code(file) and (file.startswith("/") or first not in _PACKAGES)

"""Comparison of calls: did two ranks call the same collective, or may the calls differ?

`signature` reduces an entry to what must be equal on all ranks of a group. Two ranks agree if and only if their
signatures are equal. Sizes are compared as numbers of elements, because only those matter on the wire: a tensor of
another shape with as many elements is no disagreement.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any, Final

#: Each rank may send and receive another amount.
_UNEVEN: Final = ("all_to_all", "alltoall", "allgatherv", "all_gather_v", "reduce_scatter_v", "reduce_scatterv")
#: All ranks have the part, but only the root has the whole, so only the part must agree.
_ROOTED: Final = ("gather", "scatter", "broadcast", "reduce", "_broadcast_oop", "_reduce_oop")
#: The type that the recorder writes for a tensor that a rank does not have.
_NO_TENSOR: Final = ("UNKNOWN_SCALAR", "Undefined")
#: The record that closes a coalesced group; its operations are recorded before it.
COALESCED: Final = "coalesced"

#: Bounds for hostile sizes: tensors in an entry, dimensions of a tensor.
_MAX_TENSORS: Final = 65_536
_MAX_DIMS: Final = 64


def operation_of(profiling_name: str) -> str:
    """Return `all_reduce` for `nccl:all_reduce`."""
    _, colon, tail = profiling_name.partition(":")
    return tail if colon else profiling_name


def sizes_of(value: Any) -> tuple[tuple[int, ...], ...]:
    """Return tensor sizes as tuples. Anything but lists of integers is left out."""
    if not isinstance(value, list | tuple):
        return ()
    sizes: list[tuple[int, ...]] = []
    for item in value[:_MAX_TENSORS]:
        if isinstance(item, list | tuple):
            sizes.append(tuple(n for n in item[:_MAX_DIMS] if type(n) is int))
        elif type(item) is int:  # the sizes of one tensor, without the outer list
            return (tuple(n for n in value[:_MAX_DIMS] if type(n) is int),)
    return tuple(sizes)


def dtypes_of(value: Any) -> tuple[str, ...]:
    """Return element types, which are recorded as a list or as one string."""
    if isinstance(value, str):
        return (value,) if value else ()
    if not isinstance(value, list | tuple):
        return ()
    return tuple(item[:64] for item in value[:_MAX_TENSORS] if isinstance(item, str) and item)


def elements(sizes: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """Return the number of elements of each tensor, bounded."""
    counts = []
    for dims in sizes:
        count = 1
        for n in dims:
            count *= n
            if count > 1 << 62:
                break
        counts.append(count)
    return tuple(counts)


def signature(
    operation: str,
    input_sizes: tuple[tuple[int, ...], ...],
    input_dtypes: tuple[str, ...],
    output_sizes: tuple[tuple[int, ...], ...],
    output_dtypes: tuple[str, ...],
) -> str:
    """Return the part of a call that must be equal on all ranks of the group at one sequence number."""
    if operation == COALESCED or operation.endswith("_coalesced"):
        # The members of a coalesced group are recorded (and compared) on their own; the closing record repeats
        # whatever tensors this rank happened to pass.
        return operation
    inputs, outputs = elements(input_sizes), elements(output_sizes)
    types_in, types_out = _distinct(input_dtypes), _distinct(output_dtypes)
    if operation.startswith(_UNEVEN):
        # A rank that sends or receives nothing may have no type on that side.
        return f"{operation}|{types_in or types_out}"
    if operation in _ROOTED:
        part, types = _part((inputs, types_in), (outputs, types_out))
        return f"{operation}|{part}|{types}"
    if operation in ("all_gather", "allgather"):
        if len(set(outputs)) > 1:
            return f"{operation}|{sum(outputs)}|{types_in}"  # parts of different sizes: all ranks have the same total
        # A list of parts and one tensor of the whole mean the same.
        outputs = (sum(outputs),)
    elif operation == "reduce_scatter":
        if len(set(inputs)) > 1:
            return f"{operation}|{sum(inputs)}|{types_in}"
        inputs = (sum(inputs),)
    return f"{operation}|{inputs}|{types_in}|{outputs}|{types_out}"


def _part(*sides: tuple[tuple[int, ...], tuple[str, ...]]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the side of a rooted collective that every rank has: elements and types.

    NCCL records the part of a scatter as its input, gloo as its output. Only the root has the other side. The other
    ranks write it as `[[0]]` of an unknown type (NCCL), as `[[]]` without a type, or not at all. So the part is the
    side with the fewest tensors among those that this rank has.
    """
    typed = [side for side in sides if all(side) and not set(side[1]) & set(_NO_TENSOR)]
    recorded = typed or [side for side in sides if side[0] not in ((), (0,))] or list(sides)
    return min(recorded, key=lambda side: (len(side[0]), sum(side[0])))


def _distinct(types: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(types))


@lru_cache(maxsize=1024)
def digest(text: str) -> int:
    """Return a 63-bit number for a signature, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "little") >> 1

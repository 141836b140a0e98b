"""Causes of failure and the signals they give, read from `plays.yaml`."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any, Literal, TypeAlias

import msgspec

Scheduler: TypeAlias = Literal["slurm", "kubernetes"]


class PrintedLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of text, and who prints it.

    Args:
        at: seconds after the failure begins; `timeout` where the job's collectives time out.
        on: see `plays.yaml`.
        of: the scheduler under which it is printed; both where None.
        reason: of a Kubernetes event, whose message the text is.
        about: of a Kubernetes event: the pod of the culprit, its node, or a stranger's pod.
    """

    at: float | Literal["timeout"]
    on: str
    text: str
    of: Scheduler | None = None
    reason: str = ""
    about: Literal["pod", "node", "stranger"] = "pod"


class PlayedSample(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fact that no text carries: a counter or a gauge.

    Args:
        fact: name of its type.
        every: seconds between two of them.
        times: how many.
    """

    at: float
    on: str
    fact: str
    fields: dict[str, Any]
    every: float = 0.0
    times: int = 1


class Play(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way in which a cause shows.

    Args:
        root: acceptable root causes; "" where no cause need be named.
        node: whether the signals name the culprit's node.
        signal: whether anything says what the cause was.
        page: whether people have to be told.
        slow: the culprit's rank takes three times as long as the others.
        once: of noise: twice in a few minutes on one node would be a fault.
    """

    play: str
    weight: int = 1
    root: tuple[str, ...] = ()
    class_: tuple[str, ...] = msgspec.field(default=(), name="class")
    node: bool = True
    signal: bool = True
    page: Literal["needed", "optional"] = "needed"
    slow: bool = False
    once: bool = False
    ends: tuple[str, ...] = ("together",)
    lines: tuple[PrintedLine, ...] = ()
    facts: tuple[PlayedSample, ...] = ()


class PublishedCause(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cause as the published table names it.

    Args:
        count: interruptions in 54 days on 16,384 GPUs.
        planned: the stop was asked for, and nobody is to be told.
    """

    cause: str
    count: int
    plays: tuple[Play, ...]
    planned: bool = False


class Catalogue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything in `plays.yaml`.

    Args:
        ends: lines of the other ranks, by how they end.
    """

    ends: dict[str, tuple[PrintedLine, ...]]
    causes: tuple[PublishedCause, ...]
    noise: tuple[Play, ...]


@cache
def catalogue() -> Catalogue:
    """Read `plays.yaml`."""
    from ruamel.yaml import YAML

    text = resources.files("tracecore.simulation").joinpath("plays.yaml").read_text(encoding="utf-8")
    return msgspec.convert(YAML(typ="safe").load(text), Catalogue)

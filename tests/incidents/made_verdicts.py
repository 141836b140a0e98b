"""Verdicts and facts made for tests of arbitration: any pattern name, any identity, any fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from tracecore.engine.emission import Emission
from tracecore.facts.fact import Fact
from tracecore.facts.process import ExitStatus
from tracecore.facts.training import Progress
from tracecore.patterns.contract import Role, Suspects, Verdict
from tracecore.signals.record import Source

SECOND = 1_000_000_000
T0 = 1_790_000_000 * SECOND


class Seen(Fact, frozen=True, kw_only=True):
    """A fact of any kind."""

    kind: ClassVar[str] = "seen"

    pid: int | None = None


class Hung(Fact, frozen=True, kw_only=True):
    kind: ClassVar[str] = "nccl_watchdog"


ROLES: dict[str, Role] = {
    "nccl_hang": "symptom",
    "nccl_bootstrap": "symptom",
    "straggler": "symptom",
    "planned_stop": "outcome",
}


def verdict(
    name: str,
    at: float,
    *facts: Fact,
    role: Role | None = None,
    ranks: Sequence[int] = (),
    fields: Mapping[str, Any] | None = None,
    **own: Any,
) -> Emission:
    """A standing verdict of a pattern of this name."""
    own |= fields or {}
    label, its_role = name, role or ROLES.get(name, "cause")
    evidence = facts or (seen(at),)

    class Made(Verdict, frozen=True, kw_only=True):
        pattern_id: ClassVar[str] = "0"
        pattern_name: ClassVar[str] = label
        role: ClassVar[Role] = its_role

        def headline(self) -> str:
            return f"{label} of {list(ranks)}"

        def remediation(self) -> str:
            return "do something"

        def evidence(self) -> Sequence[Fact]:
            return evidence

        def suspects(self) -> Suspects:
            if not ranks:
                return Suspects.of(evidence)
            return Suspects(ranks=tuple(ranks), nodes=tuple(sorted({f.node for f in evidence if f.node})))

        def fields(self) -> dict[str, Any]:
            return {key.replace("__", "."): value for key, value in own.items()}

    made = Made(key=(label,), episode=str(at), time=T0 + int(at * SECOND))
    return Emission(1, "active", made, made.time)


def place(path: str = "a.log", line: int = 1) -> Source:
    return Source(path, line * 100, line, 50)


def seen(at: float, *, path: str = "", line: int = 1, **identity: Any) -> Seen:
    source = place(path or f"{at}.log", line)
    return Seen(time=T0 + int(at * SECOND), source=source, **identity)


def watchdog(at: float, rank: int) -> Hung:
    return Hung(time=T0 + int(at * SECOND), source=place(f"rank{rank}.log"), rank=rank)


def ended(codes: dict[int, int | None], attempt: int = 0) -> list[Fact]:
    return [
        ExitStatus(
            time=T0 + 3600 * SECOND,
            source=Source("exit_codes.json", ident=f"exit#{rank}"),
            rank=rank,
            exit_code=code,
            alive=code is None,
            approximate=True,
            attempt=attempt,
        )
        for rank, code in codes.items()
    ]


def steps(*times: float, attempt: int = 0, rank: int = 0) -> list[Fact]:
    return [
        Progress(time=T0 + int(t * SECOND), source=place("steps.log", n + 1), step=n, rank=rank, attempt=attempt)
        for n, t in enumerate(times)
    ]

"""Sparks, smoke and a pattern that joins them: what the tests of the engine are about."""

from __future__ import annotations

from typing import ClassVar

from tracecore.facts.fact import Fact
from tracecore.patterns.config import MINUTE, SECOND, Duration, Settings
from tracecore.patterns.contract import Key, Pattern, Verdict, Window
from tracecore.signals.record import Source

T0 = 1_700_000_000 * SECOND


class Spark(Fact, frozen=True, kw_only=True):
    kind: ClassVar[str] = "spark"


class Smoke(Fact, frozen=True, kw_only=True):
    kind: ClassVar[str] = "smoke"


class Fire(Verdict, frozen=True, kw_only=True):
    pattern_id: ClassVar[str] = "900"
    pattern_name: ClassVar[str] = "fire"
    role: ClassVar[str] = "cause"  # type: ignore[assignment]

    spark: Fact
    smokes: tuple[Fact, ...]

    def headline(self) -> str:
        return f"{len(self.smokes)} smokes after a spark"

    def remediation(self) -> str:
        return "look"

    def evidence(self) -> tuple[Fact, ...]:
        return (self.spark, *self.smokes)


class FireSettings(Settings, frozen=True, kw_only=True):
    window: Duration = MINUTE


class FirePattern(Pattern[FireSettings]):
    """Smoke within a minute of a spark on the same node."""

    id = "900"
    name = "fire"
    role = "cause"
    maturity = "experimental"
    needs = (Spark, Smoke)
    triggers = (Smoke,)
    Config = FireSettings

    @property
    def horizon(self) -> int:
        return self.config.window

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        return ((fact.node,),) if fact.node else ()

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        found: list[Verdict] = []
        for spark in window.of(Spark):
            smokes = tuple(s for s in window.of(Smoke) if 0 <= s.time - spark.time <= self.config.window)
            if smokes:
                found.append(Fire(key=window.key, episode=spark.uid, time=smokes[0].time, spark=spark, smokes=smokes))
        return found


class Silence(Fire, frozen=True, kw_only=True):
    pattern_id: ClassVar[str] = "901"
    pattern_name: ClassVar[str] = "silence"


class SilencePattern(FirePattern):
    """A spark with no smoke for a minute."""

    id = "901"
    name = "silence"
    triggers = (Spark,)

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        return [
            Silence(key=window.key, episode=spark.uid, time=spark.time, spark=spark, smokes=())
            for spark in window.of(Spark)
            if now >= spark.time + self.config.window
            and not any(0 <= smoke.time - spark.time <= self.config.window for smoke in window.of(Smoke))
        ]

    def due(self, window: Window, now: int) -> int | None:
        return min(
            (s.time + self.config.window for s in window.of(Spark) if s.time + self.config.window > now), default=None
        )


def spark(seconds: float, node: str = "n1", uid: str = "", **more: object) -> Spark:
    time = T0 + int(seconds * SECOND)
    return Spark(time=time, source=Source(path="spark", offset=time, ident=uid), node=node, **more)  # type: ignore[arg-type]


def smoke(seconds: float, node: str = "n1", uid: str = "", **more: object) -> Smoke:
    time = T0 + int(seconds * SECOND)
    return Smoke(time=time, source=Source(path="smoke", offset=time, ident=uid), node=node, **more)  # type: ignore[arg-type]


def at(seconds: float) -> int:
    return T0 + int(seconds * SECOND)

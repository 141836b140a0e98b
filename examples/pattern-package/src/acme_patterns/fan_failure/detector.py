"""A fan of the machine stands still, and a GPU gets hot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from acme_patterns.fan_stopped import FanStopped
from tracecore.facts.fact import Fact
from tracecore.facts.gpu import ThrottleSample
from tracecore.patterns.config import MINUTE, Duration, Settings
from tracecore.patterns.contract import Key, Pattern, Role, Verdict, Window


class Config(Settings, frozen=True, kw_only=True):
    """
    Args:
        window: how long after a fan stopped a hot GPU is put down to it.
    """

    window: Duration = 10 * MINUTE


class FanFailureVerdict(Verdict, frozen=True, kw_only=True):
    pattern_id: ClassVar[str] = "acme-1"
    pattern_name: ClassVar[str] = "fan_failure"
    role: ClassVar[Role] = "cause"

    fan: FanStopped
    hot: ThrottleSample

    def headline(self) -> str:
        return f"Fan {self.fan.fan} of {self.fan.node} stopped and GPU {self.hot.gpu} throttles from heat"

    def remediation(self) -> str:
        node = self.fan.node
        return f"Drain {node} (`kubectl drain {node} --ignore-daemonsets`) and replace fan {self.fan.fan}."

    def evidence(self) -> Sequence[Fact]:
        return (self.fan, self.hot)

    def fields(self) -> dict[str, Any]:
        return {"k8s.node.name": self.fan.node, "fan": self.fan.fan}

    def promoted(self) -> dict[str, Any]:
        return {"k8s.node.name": self.fan.node, "tracecore.alert.fan_failure.fan": self.fan.fan}


class FanFailure(Pattern[Config]):
    """A fan stops; the first GPU of that node to throttle from heat within ten minutes proves that it mattered."""

    id = "acme-1"
    name = "fan_failure"
    role = "cause"
    maturity = "experimental"
    needs = (FanStopped, ThrottleSample)
    triggers = (FanStopped,)
    Config = Config

    @property
    def horizon(self) -> int:
        return self.config.window

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        if fact.node is None or (isinstance(fact, ThrottleSample) and not fact.thermal):
            return ()
        return ((fact.node,),)

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        return list(self._join(window))

    def _join(self, window: Window) -> Iterator[Verdict]:
        samples = iter(window.of(ThrottleSample))
        hot = next(samples, None)
        for fan in window.of(FanStopped):
            while hot is not None and hot.time < fan.time:
                hot = next(samples, None)
            if hot is not None and hot.time <= fan.time + self.config.window:
                yield FanFailureVerdict(key=window.key, episode=fan.source, time=hot.time, fan=fan, hot=hot)

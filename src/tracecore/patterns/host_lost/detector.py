"""Detection of a machine that vanished, rebooted or panicked."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from tracecore.facts.fact import order
from tracecore.facts.host import HostEvent, NodeSilence, SlurmState
from tracecore.facts.kubernetes import GIVEN_UP, SLURM_DOWN, NodeReadiness
from tracecore.facts.stop import ASKED, PlannedStop
from tracecore.facts.training import Progress
from tracecore.facts.wording import counted, seconds
from tracecore.patterns.config import MINUTE, SECOND, Duration, Settings
from tracecore.patterns.contract import Pattern, Role, Verdict, filled, to_the_second
from tracecore.patterns.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key, Window

Sign: TypeAlias = Literal["panic", "reboot", "node_fail", "not_ready", "given_up", "silence"]

#: Kernel events of a machine that goes down or has problems. None: the event alone is no sign of a loss.
EVENTS: dict[str, Sign | None] = {
    "panic": "panic", "boot": "reboot", "shutdown": "reboot", "oops": None, "prolog_failed": None,
}  # fmt: skip
WORDS: dict[Sign, str] = {
    "panic": "its kernel panicked",
    "reboot": "it rebooted",
    "node_fail": "the scheduler reports it failed",
    "not_ready": "it is not ready",
    "given_up": "the job launcher lost contact with it",
    "silence": "its peers went on, but nothing was received from it",
}
#: Reasons of stops that take away the machine and not only a job.
TAKEN_AWAY = frozenset({"spot", "maintenance", "drain"})
RANK: dict[Sign, int] = {"panic": 0, "reboot": 1, "node_fail": 2, "not_ready": 3, "given_up": 4, "silence": 5}
_time = attrgetter("time")


class Config(Settings, frozen=True, kw_only=True):
    """
    Args:
        silence: a node counts as lost when it is silent, or not ready, for this long.
        window: two signs this close to each other belong to one loss.
        planned: a loss this soon after a drain or maintenance was announced is part of it.
    """

    silence: Duration = 60 * SECOND
    window: Duration = 10 * MINUTE
    planned: Duration = 30 * MINUTE


class HostLostVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        signs: facts that show the loss, oldest first.
        sign: the strongest of them.
        pods: pods that were on the machine, if reports name only pods.
    """

    pattern_id: ClassVar[str] = "12"
    pattern_name: ClassVar[str] = "host_lost"
    role: ClassVar[Role] = "cause"

    signs: tuple[Fact, ...]
    sign: Sign
    pods: tuple[str, ...] = ()

    @property
    def node(self) -> str | None:
        return next((fact.node for fact in self.signs if fact.node), None)

    def headline(self) -> str:
        job = next((fact.job for fact in self.signs if fact.job), None)
        who = self.node or (f"A node of job {job}" if job else "The machine")
        if self.pods and self.node is None:
            more = f" and {counted(len(self.pods) - 1, 'more pod')}" if len(self.pods) > 1 else ""
            who = f"The node of {self.pods[0]}{more}"
        last = min(self.signs, key=lambda fact: (fact.approximate, fact.time))
        at = "" if last.approximate else f" at {to_the_second(last.time)}"
        silent = max((fact.silent_s for fact in self.signs if isinstance(fact, NodeSilence)), default=0.0)
        lasted = f" for {seconds(silent)}" if self.sign == "silence" else ""
        return f"{who} was lost{at}: {WORDS[self.sign]}{lasted}"

    def remediation(self) -> str:
        node = self.node or "NODE"
        scheduler = any(
            isinstance(fact, SlurmState) or (isinstance(fact, NodeReadiness) and fact.reason == SLURM_DOWN)
            for fact in self.signs
        )
        state = f"scontrol show node {node}" if scheduler else f"kubectl describe node {node}"
        keep = (
            f"scontrol update NodeName={node} State=DRAIN Reason=host_lost" if scheduler else f"kubectl cordon {node}"
        )
        look = (
            f"Read its last kernel messages (`journalctl -k -b -1 -n 200` on {node} once it is back, "
            f"`/sys/fs/pstore`, `/var/crash`)"
            if self.sign in ("panic", "reboot")
            else f"Check whether it still answers (`ping {node}`, `{state}`, `ipmitool -H BMC chassis power status`)"
        )
        return (
            f"Keep work off it (`{keep}`). {look}, and the hardware's log (`ipmitool -H BMC sel list`). Restart the "
            f"job without this node from its last checkpoint."
        )

    def evidence(self) -> Sequence[Fact]:
        return self.signs

    def missing_layers(self) -> tuple[str, ...]:
        return ("kernel",) if self.confidence == "partial" else ()

    def fields(self) -> dict[str, Any]:
        return filled({"sign": self.sign, "k8s.node.name": self.node})

    def promoted(self) -> dict[str, Any]:
        return {"tracecore.alert.host_lost.sign": self.sign, "k8s.node.name": self.node}


def _of_cluster(pod: str) -> tuple[bool, str]:
    return pod.startswith("kube-"), pod


class HostLost(Pattern[Config]):
    """Signs that a machine went away: from its kernel, its readiness, the scheduler, or silence while others go on.

    A panic or a reboot is full, the rest partial. A boot counts as a reboot only if the machine had worked shortly
    before or another sign is near. A loss soon after a drain or maintenance was announced does not count.
    """

    id = "12"
    name = "host_lost"
    role = "cause"
    maturity = "experimental"
    needs = (HostEvent, NodeReadiness, SlurmState, NodeSilence, PlannedStop, Progress)
    triggers = (HostEvent, NodeReadiness, SlurmState, NodeSilence)
    Config = Config

    @property
    def horizon(self) -> int:
        return max(self.config.window, self.config.planned, self.config.silence)

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        if isinstance(fact, HostEvent) and fact.event not in EVENTS:
            return ()
        if isinstance(fact, SlurmState) and fact.state != "NODE_FAIL":
            return ()
        if isinstance(fact, PlannedStop) and fact.reason not in ASKED:
            return ()
        if type(fact) is NodeReadiness and fact.node:
            # The shared window ignores reports about pods if other reports name nodes.
            return ((fact.node, ""), ("", fact.job or ""))
        return ((fact.node, ""),) if fact.node else (("", fact.job or ""),)

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        stops = Timeline(window.of(PlannedStop))
        episodes = self._episodes(window)
        found = [verdict for signs in episodes if (verdict := self._judge(window, signs, stops)) is not None]
        away = bool(found) and self._taken_away(window)
        return [verdict for verdict in found if not away or verdict.sign == "panic"]

    def _episodes(self, window: Window) -> Iterator[list[tuple[int, Fact]]]:
        """Yield groups of signs that follow each other within the window, each with the time at which it counts."""
        signs: list[tuple[int, Fact]] = [(fact.time, fact) for fact in window.of(HostEvent)]
        signs += [(fact.time, fact) for fact in window.of(SlurmState)]
        states = window.of(NodeReadiness)
        if window.key[0] or not any(state.node for state in states):
            signs += [(fact.time, fact) for fact in self._away(states)]
        signs += [
            (fact.time + self.config.silence, fact)
            for fact in window.of(NodeSilence)
            if fact.silent_s >= self.config.silence / SECOND and fact.peers > 0
        ]
        signs.sort(key=lambda sign: (sign[0], sign[1].uid))
        episode: list[tuple[int, Fact]] = []
        for at, fact in signs:
            if episode and at - max(episode[-1][0], episode[-1][1].end) > self.config.window:
                yield episode
                episode = []
            episode.append((at, fact))
        if episode:
            yield episode

    def _away(self, states: Sequence[NodeReadiness]) -> Iterator[NodeReadiness]:
        """Yield the reports of a node that is not ready and does not become ready again soon."""
        ready = [state for state in states if state.ready]
        for state in states:
            if not state.ready:
                place = bisect_left(ready, state.time, key=_time)
                if place == len(ready) or ready[place].time >= state.time + self.config.silence:
                    yield state

    def _judge(
        self, window: Window, episode: list[tuple[int, Fact]], stops: Timeline[PlannedStop]
    ) -> HostLostVerdict | None:
        facts = [fact for _, fact in episode]
        # Every kernel log begins with a boot, so a boot counts only if another sign is near.
        gone = any(not isinstance(fact, HostEvent) or fact.event == "panic" for fact in facts)
        signs = [(known, fact) for fact in facts if (known := self._sign(window, fact, gone)) is not None]
        if not signs:
            return None
        sign: Sign = min((sign for sign, _ in signs), key=RANK.__getitem__)
        begin = min(fact.time for fact in facts)
        if sign == "node_fail" and any(isinstance(fact, HostEvent) and fact.event == "prolog_failed" for fact in facts):
            return None  # the machine answers; Slurm only removed a job that could not begin there
        if sign != "panic" and stops.first(begin - self.config.planned, episode[-1][0]) is not None:
            return None
        anchor = signs[0][1]
        # One fact of each kind is enough evidence.
        shown: dict[tuple[type[Fact], str | None], Fact] = {(type(anchor), getattr(anchor, "event", None)): anchor}
        for fact in facts:
            shown.setdefault((type(fact), getattr(fact, "event", None)), fact)
        return HostLostVerdict(
            key=window.key,
            episode=anchor.source,
            time=begin,
            confidence="full" if sign in ("panic", "reboot") else "partial",
            signs=tuple(sorted(shown.values(), key=order)),
            sign=sign,
            # Pods of the cluster itself come last, because every node has them.
            pods=tuple(sorted({f.pod for f in facts if type(f) is NodeReadiness and f.pod}, key=_of_cluster)),
        )

    def _taken_away(self, window: Window) -> bool:
        """Return whether a report without a time says that the machine was taken away, such as the status of a pod."""
        stops = window.of(PlannedStop) if window.key[0] else ()
        return any(stop.approximate and stop.reason in TAKEN_AWAY for stop in stops)

    def _sign(self, window: Window, fact: Fact, gone: bool) -> Sign | None:
        """Return the kind of sign; `gone` says whether other signs show that the machine is gone."""
        if isinstance(fact, SlurmState):
            return "node_fail"
        if isinstance(fact, NodeReadiness):
            return "given_up" if fact.reason == GIVEN_UP else "not_ready"
        if isinstance(fact, NodeSilence):
            return "silence"
        if not isinstance(fact, HostEvent):
            return None
        sign = EVENTS.get(fact.event)
        if sign == "reboot" and not fact.rebooted and not gone and not self._was_at_work(window, fact):
            return None
        return sign

    def _was_at_work(self, window: Window, event: HostEvent) -> bool:
        """Return whether training made steps until shortly before a boot."""
        if event.approximate:
            return False
        steps = window.of(Progress)
        place = bisect_right(steps, event.time, key=_time)
        last = steps[place - 1] if place else None
        return last is not None and not last.approximate and event.time - last.time <= self.config.window

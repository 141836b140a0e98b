"""The `k8sattributes` processor: who a record comes from, by the Kubernetes API."""

from __future__ import annotations

import ipaddress
import logging
import os
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import re2

from tracecore.agent.batch import LEVELS, Batch
from tracecore.agent.component import Setting
from tracecore.agent.document import ConfigReport, Node
from tracecore.agent.options import MILLISECOND, SECOND
from tracecore.agent.processors.cluster import Cluster
from tracecore.agent.processors.k8sattributes_options import How, Options, key_kind
from tracecore.agent.processors.podfields import FICKLE, MANY_NAMES, UNKNOWN
from tracecore.agent.processors.pods import KnownPod
from tracecore.agent.tally import Growth
from tracecore.recent import Recent
from tracecore.signals.kubernetes import api

log = logging.getLogger("tracecore.agent.k8sattributes")

#: Records that wait for their pod at a time; those that come when so many wait go on without.
WAITING: Final = 20_000
#: A pod that did not become known is not waited for again for so long; so many are remembered.
STRANGER: Final = 300 * SECOND
STRANGERS: Final = 65_536
#: As long as records wait, nanoseconds between two looks at what the watch has learned: it is another thread's.
LOOK: Final = 50 * MILLISECOND


class _HeldBatch(NamedTuple):
    batch: Batch
    until: int
    records: int


class K8sAttributes:
    """Adds what the API knows about the pod of each resource."""

    def __init__(self, options: Options, setting: Setting) -> None:
        self._options = options
        self._setting = setting
        self._clock = setting.clock
        kinds = [kind for one in options.pod_association if (kind := key_kind(one.sources)) is not None]
        self._kinds: tuple[How, ...] = tuple(kinds) or ("uid", "name", "ip", "connection")
        variable = options.filter.node_from_env_var
        node = options.filter.node or os.environ.get(variable, "")
        self._unset = variable if variable and not node else ""
        self._cluster: Cluster = setting.share(
            lambda: Cluster(
                lambda: api.connect(options.auth_type, options.context),
                options.filter.collection(node),
                node,
                options.extract,
                [excluded.name for excluded in options.exclude.pods],
                self._state,
                options.pod_delete_grace_period / SECOND,
            )
        )
        self._pods = self._cluster.pods
        self._waited = not options.wait_for_metadata
        self._held: list[_HeldBatch] = []
        self._holding = 0
        self._learned = 0
        self._strangers: Recent[Any, int] = Recent(STRANGERS)
        self._growth = Growth()
        self._many = False
        setting.meter.gauges["label_attributes"] = lambda: len(self._cluster.names)

    def start(self) -> None:
        if self._options.passthrough:
            return
        if self._unset:
            # Without it every agent would follow the pods of the whole cluster.
            self._state(f"the environment variable {self._unset} is not set")
            return
        self._cluster.start()

    def stop(self) -> None:
        if not self._options.passthrough and not self._unset:
            self._cluster.stop()

    def _state(self, wrong: str) -> None:
        self._setting.report(wrong, again="pods are known again")

    # -- records -----------------------------------------------------------------------------------------------------

    def process(self, batch: Batch) -> Iterable[Batch]:
        if self._options.passthrough:
            if peer := _peer(batch):
                for entry in batch.payload.get(LEVELS[batch.signal][0]) or ():
                    entry.setdefault("resource", {}).setdefault("attributes", {}).setdefault("k8s.pod.ip", peer)
            return (batch,)
        if not self._waited:
            self._cluster.wait(self._options.wait_for_metadata_timeout / SECOND)
            self._waited = True
        made = self._released() if self._held else []
        level = LEVELS[batch.signal][0]
        strangers = self._name(batch.payload.get(level) or (), _peer(batch))
        if strangers and self._may_wait():
            made += self._part(batch, level, strangers)
        else:
            made.append(batch)
        return made

    def _name(self, entries: Iterable[Any], peer: str) -> list[int]:
        """Add what is known; the numbers of those whose pod is not, though they name one."""
        strangers: list[int] = []
        for number, entry in enumerate(entries):
            resource = entry.setdefault("resource", {})
            own: dict[str, Any] = resource.setdefault("attributes", {})
            known = next((pod for kind in self._kinds if (pod := self._by(kind, own, peer)) is not None), None)
            if known is not None:
                own = resource["attributes"] = {**known.of(own.get("k8s.container.name")), **own}
            elif self._names_a_pod(own):
                strangers.append(number)
            if self._cluster.wide:
                resource["attributes"] = {**self._cluster.around(known, own), **own}
        return strangers

    def _by(self, kind: How, own: dict[str, Any], peer: str) -> KnownPod | None:
        pods = self._pods
        if kind == "uid":
            return _known(pods.by_uid, own.get("k8s.pod.uid"))
        if kind == "name":
            name, space = own.get("k8s.pod.name"), own.get("k8s.namespace.name")
            return pods.by_name.get((space, name)) if isinstance(name, str) and isinstance(space, str) else None
        if kind == "container":
            return _known(pods.by_container, own.get("container.id"))
        if kind == "ip":
            return _known(pods.by_address, own.get("k8s.pod.ip") or own.get("ip") or own.get("host.name"))
        if kind == "connection" and (known := _known(pods.by_address, peer)) is not None:
            own.setdefault("k8s.pod.ip", peer)
            return known
        return None

    def _names_a_pod(self, own: dict[str, Any]) -> bool:
        """Return whether a resource names its pod in a way that pods are looked for."""
        if "uid" in self._kinds and own.get("k8s.pod.uid") is not None:
            return True
        named = isinstance(own.get("k8s.pod.name"), str) and isinstance(own.get("k8s.namespace.name"), str)
        return "name" in self._kinds and named

    # -- records that come before their pod --------------------------------------------------------------------------

    def _may_wait(self) -> bool:
        return bool(self._options.wait_for_pod) and self._cluster.awaited and self._holding < WAITING

    def _part(self, batch: Batch, level: str, strangers: list[int]) -> list[Batch]:
        """The batch without what waits for its pod."""
        now = self._clock()
        entries = batch.payload[level]
        waits: list[dict[str, Any]] = []
        chosen = set(strangers)
        goes = []
        for number, entry in enumerate(entries):
            if number in chosen and self._is_new(entry["resource"]["attributes"], now):
                waits.append(entry)
            else:
                goes.append(entry)
        if not waits:
            return [batch]
        if goes:
            batch.hold(1)
        held = Batch(batch.signal, {level: waits}, acks=batch.acks)
        self._held.append(_HeldBatch(held, now + self._options.wait_for_pod, held.count))
        self._holding += held.count
        return [Batch(batch.signal, {level: goes}, acks=batch.acks)] if goes else []

    def _is_new(self, own: dict[str, Any], now: int) -> bool:
        """Return whether this pod may still become known: nobody has waited for it in vain."""
        again = self._strangers.get(_key(own))
        return again is None or again <= now

    def _released(self) -> list[Batch]:
        """Batches whose pods became known, or that waited long enough, oldest first."""
        now = self._clock()
        made: list[Batch] = []
        kept: list[_HeldBatch] = []
        for held in self._held:
            level = LEVELS[held.batch.signal][0]
            entries = held.batch.payload[level]
            strangers = self._name(entries, "")
            if strangers and held.until > now:
                kept.append(held)
            else:
                for number in strangers:
                    self._give_up(entries[number]["resource"]["attributes"], now)
                self._holding -= held.records
                made.append(held.batch)
        self._held = kept
        return made

    def _give_up(self, own: dict[str, Any], now: int) -> None:
        self._strangers[_key(own)] = now + STRANGER

    def due(self) -> int | None:
        self._count()
        if not self._held:
            return None
        if self._pods.following.learned != self._learned:
            self._learned = self._pods.following.learned
            return 0
        return min(self._clock() + LOOK, *(held.until for held in self._held))

    def tick(self, now: int) -> Iterable[Batch]:
        return self._released()

    def drain(self, now: int) -> Iterable[Batch]:
        held, self._held, self._holding = self._held, [], 0
        for one in held:
            self._name(one.batch.payload[LEVELS[one.batch.signal][0]], "")
        return [one.batch for one in held]

    def _count(self) -> None:
        """Say what the watch could not keep, and what a backend may not be able to."""
        names = self._cluster.names
        if len(names) > MANY_NAMES and not self._many:
            self._many = True
            some = ", ".join(sorted(names.copy())[:3])
            log.warning(
                "%s: labels and annotations became %d different attributes (%s, …): more than most backends index; "
                "name those you need with key",
                self._setting.id,
                len(names),
                some,
            )
        for reason, so_far in (("overflow", self._cluster.overflow), ("malformed", self._cluster.malformed)):
            self._setting.meter.drop(f"pods_{reason}", self._growth.of(reason, so_far))


def _known(pods: dict[str, KnownPod], key: object) -> KnownPod | None:
    return pods.get(key) if isinstance(key, str) and key else None


def _key(own: dict[str, Any]) -> tuple[Any, ...]:
    return str(own.get("k8s.pod.uid")), str(own.get("k8s.namespace.name")), str(own.get("k8s.pod.name"))


def _peer(batch: Batch) -> str:
    """The address that a batch was sent from, in its one form; nothing where it was not sent."""
    if not batch.peer:
        return ""
    try:
        address = ipaddress.ip_address(batch.peer)
    except ValueError:
        return ""
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def check(options: Options, node: Node, report: ConfigReport) -> None:
    """Warn of labels that are different for every pod or rollout, and of what nobody asks the API for."""
    for number, name in enumerate(options.extract.metadata):
        if name in UNKNOWN:
            report.warning(node.near("extract", "metadata", number), f"{name} is not known here, and left out")
    for kind, fields in (("labels", options.extract.labels), ("annotations", options.extract.annotations)):
        for number, field in enumerate(fields):
            if not field.key_regex or field.from_ != "pod":
                continue
            expression = re2.compile(f"^(?:{field.key_regex})$")
            if taken := [key for key in FICKLE if expression.match(key)]:
                report.warning(
                    node.near("extract", kind, number, "key_regex"),
                    f'"{field.key_regex}" also takes {taken[0]}, which differs from pod to pod: each value is one more '
                    "stream or series in the backend",
                )

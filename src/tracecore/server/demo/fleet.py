"""Fill a store with two weeks of the simulated fleet: nodes, jobs, attempts, incidents, and what people did about them.

Jobs, attempts and failures are those that `tracecore.simulation` draws; an incident is told as its play was told.
Everything follows from the seed and the time, so that the same seed shows the same fleet.
"""

from __future__ import annotations

import math
import random
from typing import Any, Final

import msgspec

from tracecore.server.demo.recordings import Recording, lasted, recordings, restamped
from tracecore.simulation.fleet import Fleet, RankEvent, draw
from tracecore.store.jobs import JobReport
from tracecore.store.nodes import NodeReport
from tracecore.store.records import Matcher
from tracecore.store.store import Store
from tracecore.store.tables import actions, incidents, notifications
from tracecore.store.update import IncidentUpdate, read_update
from tracecore.store.writing import seen_at

SECOND: Final = 1_000_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 3600 * SECOND
DAY: Final = 24 * HOUR
DAYS: Final = 14
SEED: Final = 7
NODES: Final = tuple(f"gpu-{rack}{number:02d}" for rack in "abc" for number in range(1, 17))
#: Fails again and again.
FLAPPING: Final = "gpu-b07"
DEGRADED: Final = {"gpu-a11": "GPU 5 throttles: 91 °C", "gpu-c04": "port mlx5_1 flapped 5 times in an hour"}
SILENT: Final = "gpu-c16"
BUSES: Final = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
PEOPLE: Final = ("maria", "tomasz", "ines", "wei")
#: The failures of the node that fails again and again, as the simulated fleet plays them.
FLAPS: Final = ("fallen off the bus/watchdog", "double-bit error/closed", "port flaps/watchdog")
#: The simulated fleet fails so many times as often as published: a small one would show next to nothing in two weeks.
RATE: Final = 20.0
NOTES: Final = (
    "Drained the node and opened a ticket with the vendor.",
    "Same GPU as last week. Asked for a replacement.",
    "Restarted from the last checkpoint, 14 minutes lost.",
    "The loader waits for the object store again; asked storage to look.",
    "The team fixed the collate function, next attempt runs.",
)


class DemoJob(msgspec.Struct):
    """A job of the fleet.

    Args:
        starts: of its attempts.
        ends: of its attempts; None for one that runs.
        state: now.
        step_s: how long a step takes.
        failures: what ended its attempts, in the simulated fleet.
    """

    name: str
    nodes: list[str]
    ranks: int
    starts: list[int]
    ends: list[int | None]
    reasons: list[str]
    state: str
    step_s: float
    total_steps: int
    incidents: list[tuple[int, int]] = []
    failures: list[RankEvent] = []


def fill(store: Store, now: int, seed: int = SEED) -> None:
    """Put the fleet into an empty store."""
    dice = random.Random(seed)
    jobs = _jobs(draw(len(NODES), DAYS, seed, rate=RATE, noise=0, names=NODES), dice, now)
    updates = _incidents(dice, jobs, now)
    store.nodes.report([NodeReport(name=node, at=now - DAYS * DAY) for node in NODES])
    for begin in range(0, len(updates), 100):
        store.put(updates[begin : begin + 100], now)
    _report_jobs(store, dice, jobs, now)
    _report_nodes(store, dice, jobs, now)
    _people(store, dice, now)


def _jobs(fleet: Fleet, dice: random.Random, now: int) -> list[DemoJob]:
    """Return the jobs of the simulated fleet with their attempts: each failure or stop ends one."""
    shift = now - fleet.end
    jobs: list[DemoJob] = []
    for slot, runs in enumerate(fleet.slots):
        for run in runs:
            begin, over = run.begins + shift, run.ends + shift
            job = DemoJob(
                run.name, run.nodes, run.ranks, [begin], [], [], "running" if over > now else "finished",
                dice.uniform(0.6, 3.5), dice.choice((5, 20, 60)) * 1000,
            )  # fmt: skip
            for event in fleet.events:
                at = event.at + shift
                if event.noise or event.slot != slot or not begin < at < over:
                    continue
                job.ends.append(at)
                job.reasons.append("stopped by an operator" if event.planned else "")
                job.failures.append(event)
                job.starts.append(at + int(dice.uniform(2, 18) * MINUTE))
            job.ends.append(None if over > now else over)
            job.reasons.append("")
            if over <= now and dice.random() < 0.1:
                job.state = "failed"
            jobs.append(job)
    return jobs


def _incidents(dice: random.Random, jobs: list[DemoJob], now: int) -> list[IncidentUpdate]:
    """Return an incident for every failure of the simulated fleet, as its play was told, and a few that are open."""
    held = recordings()
    soft = [name for name in held if "/" not in name and held[name].pattern not in ("planned_stop", "")]
    updates: list[IncidentUpdate] = []
    for job in jobs:
        for number, event in enumerate(job.failures):
            end = job.ends[number]
            assert end is not None
            if event.planned or end > now - HOUR:
                continue
            flaps = FLAPPING in job.nodes and dice.random() < 0.35
            name = dice.choice(FLAPS) if flaps else f"{event.play.play}/{event.end}"
            if name not in held or (not flaps and event.cause == "software bug"):
                name = dice.choice(soft)
            node = FLAPPING if flaps else job.nodes[min(int(event.rank_share * len(job.nodes)), len(job.nodes) - 1)]
            suspect_first = [node, *(other for other in job.nodes if other != node)]
            updates += _life(dice, held[name], job, number, end, suspect_first, now, resolved=True)
        if job.state == "failed":
            end = job.ends[-1]
            assert end is not None
            updates += _life(
                dice, held[dice.choice(soft)], job, len(job.ends) - 1, end, job.nodes, now, resolved=True
            )  # fmt: skip
    live = [job for job in jobs if job.state == "running"]
    open_now = (FLAPS[0], "fsdp8_loader_stuck", FLAPS[2], "oom_one_rank", "late_to_the_barrier", "sharded_save")
    for number, name in enumerate(open_now):
        job = live[number % len(live)]
        nodes = [FLAPPING, *job.nodes[1:]] if name == FLAPS[0] else job.nodes
        at = now - int((0.1 + 1.7 * number) * HOUR)
        updates += _life(dice, held[name], job, len(job.starts) - 1, at, nodes, now, resolved=False)
    return updates


def _life(
    dice: random.Random,
    recording: Recording,
    job: DemoJob,
    attempt: int,
    at: int,
    nodes: list[str],
    now: int,
    *,
    resolved: bool,
) -> list[IncidentUpdate]:
    """The revisions of one incident: perhaps without a cause at first, then diagnosed, then resolved."""
    at = min(at, now - lasted(recording) - 2 * MINUTE) // SECOND * SECOND
    key = f"{recording.name} {job.name} {attempt} {at}"
    document = restamped(recording, key=key, at=at, job=job.name, attempt=attempt, nodes=nodes)
    job.incidents.append((attempt, at))
    job.reasons[attempt] = job.reasons[attempt] or document["headline"]
    steps: list[tuple[str, int, str, dict[str, Any]]] = []
    state = "diagnosed" if recording.pattern else "open"
    if recording.pattern and dice.random() < 0.35:
        early = {**document, "root_cause": None, "status": "insufficient_evidence", "explains": [], "verdicts": []}
        early["headline"] = f"No progress of {job.name} for 60 s; the logs do not show why yet"
        early["suspects"] = {"ranks": [], "nodes": [], "gpus": [], "pods": []}
        steps.append(("open", at + 60 * SECOND, "new", early))
    steps.append((state, at + 95 * SECOND, "there is new evidence" if steps else "new", document))
    if resolved:
        until = at + int(dice.lognormvariate(math.log(14), 0.8) * MINUTE)
        steps.append(("resolved", min(until, now - MINUTE), "the job makes steps again", document))
    return [
        read_update(
            {**said, "state": state_, "reason": reason},
            now=when,
            revision=number,
            origin=dice.choice(("live", "live", "live", "publish")) if number == 1 else "live",
            gpus=job.ranks,
        )
        for number, (state_, when, reason, said) in enumerate(steps, 1)
        if when <= now
    ]


def points(
    dice: random.Random, job: DemoJob, attempt: int, start: int, end: int, now: int, first: int, every: int
) -> list[dict[str, Any]]:
    """Reports of progress: a loss that falls, steps that take about as long as ever, until something breaks."""
    ranks = sorted({0, 1, 2, 3, job.ranks // 2, job.ranks - 1})
    broke = any(number == attempt for number, _ in job.incidents)
    slow = job.ranks // 2 if broke else -1
    whole = (job.ends[-1] or now) - job.starts[0]
    rows: list[dict[str, Any]] = []
    at, step = start, first
    while at < end:
        left = (end - at) // (every * SECOND)
        # Every other attempt that breaks stalls for a while before it ends.
        if not (broke and attempt % 2 == 0 and 3 <= left < 14):
            loss = 1.7 + 2.3 * math.exp(-4 * (at - job.starts[0]) / whole)
            for rank in ranks:
                took = job.step_s * dice.uniform(0.97, 1.06) * (2.6 if rank == slow and left < 20 else 1.0)
                rows.append(
                    {"job": job.name, "time": at, "rank": rank, "attempt": attempt, "step": step,
                     "loss": loss + dice.gauss(0, 0.02), "step_s": took, "data_s": took * dice.uniform(0.02, 0.05)}
                )  # fmt: skip
            step += max(1, int(every / job.step_s))
        at += every * SECOND
    return rows


def _report_jobs(store: Store, dice: random.Random, jobs: list[DemoJob], now: int) -> None:
    for job in jobs:
        step = 0
        for number, start in enumerate(job.starts):
            end = job.ends[number]
            every = max(60, (now - job.starts[0]) // SECOND // 280)
            rows = points(dice, job, number, start + 5 * MINUTE, end or now, now, step, every)
            store.jobs.report([], rows)
            first, step = step, rows[-1]["step"] if rows else step
            last = number == len(job.starts) - 1
            state = job.state if last else "failed"
            store.jobs.put_attempt(
                job.name, number, state=state, started_at=start, ended_at=end, first_step=first, last_step=step,
                exit_code=None if end is None else 0 if state == "finished" else 1, reason=job.reasons[number],
                nodes=job.nodes,
            )  # fmt: skip
            if not last:
                step -= min(step - first, int((step - first) * dice.uniform(0.02, 0.12)))
        total = max(job.total_steps, int(step * 1.15)) if job.state != "finished" else step
        first_report = JobReport(name=job.name, at=job.starts[0], ranks=job.ranks, gpus=job.ranks)
        report = JobReport(
            name=job.name, at=job.ends[-1] or now - dice.randrange(5, 40) * SECOND, state=job.state, ranks=job.ranks,
            gpus=job.ranks, step=step, total_steps=total,
        )  # fmt: skip
        store.jobs.report([first_report])
        store.jobs.report([report])
        with store.database.write() as connection:
            seen_at(store.database, connection, {(job.name, node): report.at for node in job.nodes})


def gpu(number: int) -> str:
    return f"0000:{BUSES[number]}:00.0"


def _report_nodes(store: Store, dice: random.Random, jobs: list[DemoJob], now: int) -> None:
    reports: list[NodeReport] = []
    events: list[dict[str, Any]] = []

    def event(node: str, at: int, kind: str, text: str, which: int | None = None, value: float | None = None) -> None:
        events.append(
            {"node": node, "time": at, "uid": f"{kind}{len(events)}", "kind": kind,
             "gpu": "" if which is None else gpu(which), "value": value, "text": text}
        )  # fmt: skip

    for node in NODES:
        heard = now - (3 * HOUR if node == SILENT else dice.randrange(2, 25) * SECOND)
        # The store judges the other nodes by their open incidents.
        state, reason = "", ""
        if node == FLAPPING:
            state, reason = "failed", f"GPU {gpu(5)} has fallen off the bus (Xid 79)"
        elif node in DEGRADED:
            state, reason = "degraded", DEGRADED[node]
        elif node == SILENT:
            state, reason = "silent", "no heartbeat for 3 h"
        reports.append(
            NodeReport(name=node, at=now if state in ("failed", "degraded") else heard, state=state, reason=reason)
        )
        for which in range(8):
            own = "healthy"
            if (node, which) == (FLAPPING, 5):
                own = "failed"
            elif node in DEGRADED and which == 5:
                own = "degraded"
            elif node == SILENT:
                own = "silent"
            why = reason if own in ("failed", "degraded") else ""
            reports.append(
                NodeReport(name=node, at=heard, gpu=gpu(which), state=own, reason=why, model="H100 80GB HBM3")
            )
        for _ in range(dice.randrange(0, 5)):
            event(node, now - dice.randrange(DAYS * DAY), "ecc", "corrected memory error", dice.randrange(8), 1)
        if dice.random() < 0.3:
            event(
                node,
                now - dice.randrange(DAYS * DAY),
                "xid",
                "Xid 31: illegal access of a program",
                dice.randrange(8),
                31,
            )
    for day in range(DAYS):
        noon = now - day * DAY
        for _ in range(6):
            event("gpu-a11", noon - dice.randrange(6 * HOUR), "throttle", "thermal slowdown at 91 °C", 5, 91)
        event("gpu-c04", noon - dice.randrange(DAY), "link", "port mlx5_1 down, up after 0.8 s", None, 1)
    for n in range(9):
        at = now - int((0.1 + 1.45 * n) * DAY)
        event(FLAPPING, at, "xid", "Xid 79: GPU has fallen off the bus", 5, 79)
        event(FLAPPING, at - 40 * MINUTE, "pcie", "corrected PCIe errors: 240 in a minute", 5, 240)
        event(FLAPPING, at + 20 * MINUTE, "host", "rebooted")
        if n % 3 == 0:
            event(FLAPPING, at - HOUR, "ecc", "row remapping pending", 5, 1)
            event(FLAPPING, at - 2 * HOUR, "link", "NVLink 5 retrained", 5, 1)
    store.nodes.report(reports, events)


def _people(store: Store, dice: random.Random, now: int) -> None:
    """Acknowledgements, notes, silences, notifications, actions, a token."""
    found = store.incidents.find(limit=200).incidents
    active = [row for row in found if row.state != "resolved"]
    for row in active[1:4]:
        who = dice.choice(PEOPLE)
        store.people.act(row.id, "acknowledge", who, row.first_seen + 9 * MINUTE)
        store.people.note(row.id, who, dice.choice(NOTES), row.first_seen + 12 * MINUTE)
    for row in found[8::7]:
        who = dice.choice(PEOPLE)
        store.people.note(row.id, who, dice.choice(NOTES), min(now, row.first_seen + 30 * MINUTE))
    store.silences.create(
        [Matcher(name="node", value=FLAPPING), Matcher(name="pattern", value="gpu_fault")], who="maria",
        now=now - 2 * HOUR, ends_at=now + 22 * HOUR, comment="Node is drained, replacement ordered (HW-4312).",
    )  # fmt: skip
    store.silences.create(
        [Matcher(name="job", op="=~", value="eval-harness-.*")], who="tomasz", now=now - 3 * DAY, ends_at=now - 2 * DAY,
        comment="Known flaky during the storage move.",
    )  # fmt: skip
    store.tokens.create("agents of cluster a", ["ingest"], who="maria", now=now - 12 * DAY, expires_at=now + 78 * DAY)
    store.tokens.create("grafana", ["read"], who="wei", now=now - 9 * DAY)
    _sent(store, [row.id for row in found], now)
    bundle = next((row for row in found if row.origin == "publish"), found[0])
    for name, size, hours, ids, error in (
        (f"{bundle.job}-logs.tar.gz", 48_211_034, 5, [bundle.id], ""),
        ("node-gpu-b07-support.zip", 7_340_032, 30, [], ""),
        ("everything.tar", 1_932_735_283, 52, [], "the diagnosis took longer than 600 s and was ended"),
    ):
        at = now - hours * HOUR
        made = store.uploads.create(name, size, who=dice.choice(PEOPLE), now=at)
        store.uploads.claim(made.id, "demo", at + SECOND)
        store.uploads.finish(made.id, at + 21 * SECOND, incidents=ids, error=error)


def _sent(store: Store, ids: list[str], now: int) -> None:
    with store.database.write() as connection:
        table = incidents.c
        rows = connection.execute(incidents.select().where(table.id.in_(ids)).order_by(table.first_seen.desc())).all()
        told = [
            {"incident": row.number, "revision": revision, "receiver": "slack #training-ops",
             "delivery": f"{row.id}-{revision}", "reason": "opened" if revision == 1 else "updated",
             "title": f"{row.headline} ({row.job})" if row.job else row.headline, "state": "sent",
             "tries": 1, "due_at": row.first_seen, "created_at": row.first_seen,
             "sent_at": min(now, row.first_seen + 100 * SECOND + revision * SECOND)}
            for row in rows
            for revision in range(1, row.revision + 1)
        ]  # fmt: skip
        done = [
            {"incident": row.number, "key": f"quarantine {row.id}", "kind": "quarantine", "target": FLAPPING,
             "state": "done", "reason": "the third GPU fault in 7 days", "result": "cordoned, drained through Slurm",
             "who": "policy hardware", "created_at": row.first_seen + 2 * MINUTE,
             "updated_at": min(now, row.first_seen + 4 * MINUTE)}
            for row in rows
            if row.pattern == "gpu_fault" and FLAPPING in row.places
        ][:4]  # fmt: skip
        if told:
            connection.execute(notifications.insert(), told)
        if done:
            connection.execute(actions.insert(), done)

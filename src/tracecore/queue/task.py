"""Tasks, attempts at them, and requests."""

from __future__ import annotations

import re
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from tracecore.signals.redaction import is_secret_name, redacted

Status: TypeAlias = Literal["queued", "running", "completed", "failed", "dead", "cancelled"]
STATUSES: tuple[Status, ...] = get_args(Status)

#: How an attempt ended. `lost`: its worker fell silent; `preempted`: its worker was asked to stop. Neither is the
#: task's fault, and only the first is counted.
AttemptStatus: TypeAlias = Literal["running", "completed", "failed", "lost", "preempted", "cancelled"]

MAX_NAME = 200
MAX_COMMAND_BYTES = 1 << 17
MAX_ENVIRONMENT = 1000
MAX_DATASETS = 1000
PRIORITIES = (-1_000_000, 1_000_000)

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class SpecError(ValueError):
    """A task that cannot be accepted; the message says what to write instead."""


class Dataset(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Data a task reads.

    Args:
        uri: a path, or an address that the program opens itself.
        checksum: `algorithm:hex`, verified before each attempt; empty where there is none. Only for paths.
        name: the program finds the path in `TRACECORE_DATASET_<NAME>`.
    """

    uri: str
    checksum: str = ""
    name: str = ""


class Spec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The command of a task and its settings.

    Args:
        name: for people; need not be unique.
        command: program and arguments, run without a shell.
        cwd: where; the worker's own directory when empty.
        priority: the higher first; among equals the older first.
        env: added to the worker's environment.
        datasets: looked at before each attempt.
        tracking: settings for MLflow, TensorBoard and Weights & Biases (`tracking.environment`).
        policy: name of a retry policy, or its file.
        max_restarts: a bound over that of the policy; None leaves it to the policy.
        timeout_s: the longest an attempt may take; None for no bound.
        grace_s: time between SIGTERM and SIGKILL.
    """

    name: str
    command: tuple[str, ...]
    cwd: str = ""
    priority: int = 0
    env: dict[str, str] = {}
    datasets: tuple[Dataset, ...] = ()
    tracking: dict[str, dict[str, str]] = {}
    policy: str = "default"
    max_restarts: int | None = None
    timeout_s: float | None = None
    grace_s: float = 10.0


class TaskAttempt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run of a task. Times are nanoseconds since the epoch."""

    number: int
    status: AttemptStatus
    worker: str
    host: str
    token: int
    started_at: int
    ended_at: int | None = None
    exit_code: int | None = None
    signal: str = ""
    retried: bool = False
    log: str = ""
    failure: dict[str, Any] | None = None


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A task as the queue knows it. Times are nanoseconds since the epoch.

    Args:
        reason: why it is where it is, in a sentence.
        not_before: a retry waits until then.
        token: raised by every claim; what carries an older one is refused.
        lost: how many attempts in a row lost their worker.
        ledger: what the retry policy remembers of it.
        excluded: what the next attempt keeps away from (`exclusion.Exclusions`).
    """

    id: int
    spec: Spec
    status: Status
    submitted_at: int
    updated_at: int
    not_before: int = 0
    attempts: int = 0
    token: int = 0
    lost: int = 0
    worker: str = ""
    lease_until: int | None = None
    cancel_requested: bool = False
    reason: str = ""
    failure_class: str = ""
    ledger: dict[str, Any] = {}
    excluded: dict[str, Any] = {}


def is_secret(name: str) -> bool:
    """Return whether the value of a variable of this name is not to be shown."""
    return is_secret_name(name)


def check(spec: Spec) -> Spec:
    """The spec, if it can be accepted.

    Raises:
        SpecError: it cannot.
    """
    if not spec.name or len(spec.name) > MAX_NAME or not spec.name.isprintable():
        raise SpecError(f"a task needs a name of 1 to {MAX_NAME} printable characters, not {spec.name[:50]!r}")
    if not spec.command or not spec.command[0]:
        raise SpecError("a task needs a command: tracecore queue submit -- python train.py")
    if any("\0" in word for word in spec.command):
        raise SpecError("a command cannot hold a NUL character")
    if (size := sum(len(word.encode()) + 1 for word in spec.command)) > MAX_COMMAND_BYTES:
        raise SpecError(f"the command is {size} bytes long, {MAX_COMMAND_BYTES} is the most: put it into a script")
    if not PRIORITIES[0] <= spec.priority <= PRIORITIES[1]:
        raise SpecError(f"priority {spec.priority} is not between {PRIORITIES[0]} and {PRIORITIES[1]}")
    if spec.max_restarts is not None and spec.max_restarts < 0:
        raise SpecError(f"max_restarts is {spec.max_restarts}, less than 0")
    if spec.timeout_s is not None and not 0 < spec.timeout_s < 1e9:
        raise SpecError(f"a timeout of {spec.timeout_s} s makes no sense")
    if not 0 <= spec.grace_s < 1e6:
        raise SpecError(f"a grace of {spec.grace_s} s makes no sense")
    _check_environment(spec.env)
    _check_datasets(spec.datasets)
    return spec


def _check_environment(env: dict[str, str]) -> None:
    if len(env) > MAX_ENVIRONMENT:
        raise SpecError(f"{len(env)} environment variables, {MAX_ENVIRONMENT} is the most")
    for name, value in env.items():
        if not _VARIABLE.fullmatch(name):
            raise SpecError(f"{name!r} is no name of an environment variable")
        if "\0" in value:
            raise SpecError(f"the value of {name} holds a NUL character")
        if value and (is_secret(name) or redacted(value) is not value):
            raise SpecError(
                f"the value of {name} looks like a secret, and would be kept in the queue for all to read: "
                f"set {name} where the worker runs, which passes its own environment on"
            )
        if name.startswith("TRACECORE_QUEUE_"):
            raise SpecError(f"{name} is set by the queue itself")


def _check_datasets(datasets: tuple[Dataset, ...]) -> None:
    from tracecore.queue.datasets import algorithm_of, is_remote

    if len(datasets) > MAX_DATASETS:
        raise SpecError(f"{len(datasets)} datasets, {MAX_DATASETS} is the most")
    for dataset in datasets:
        if not dataset.uri or "\0" in dataset.uri:
            raise SpecError("a dataset needs a path or an address")
        if dataset.name and not _VARIABLE.fullmatch(dataset.name):
            raise SpecError(f"{dataset.name!r} is no name for a dataset: letters, digits and _ only")
        if not dataset.checksum:
            continue
        algorithm_of(dataset.checksum)
        if is_remote(dataset.uri):
            raise SpecError(f"{dataset.uri}: a checksum can be verified for a path only, not for an address")

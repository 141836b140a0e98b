"""Projectors of worker output: NCCL, exceptions, signals, launchers, memory, storage."""

from __future__ import annotations

import signal as posix
from typing import Any

from tracecore.facts import stacks, tracebacks
from tracecore.facts.coerce import flag, integer, magnitude, name, natural, positive, text, word
from tracecore.facts.identity import Stamped
from tracecore.facts.memory import CudaOom, CudaOomUnmeasured
from tracecore.facts.nccl import GLOO, NcclError, RendezvousFailure, RendezvousRetry, WatchdogReport
from tracecore.facts.process import (
    CudaError,
    ExceptionRaised,
    ExitStatus,
    FatalSignal,
    LauncherFailure,
    LoaderError,
    RankStarted,
    StackPrinted,
)
from tracecore.facts.projectors.projector import Projection
from tracecore.facts.storage import StorageError

_SIGNALS = {s.name for s in posix.Signals} | {"SIGIOT", "SIGCLD", "SIGPOLL"}
_LAUNCHER = "tracecore.launcher."


def signal_named(value: object) -> str | None:
    """Return `SIGSEGV` for `SIGSEGV`, `segv`, `11` or 11."""
    code = positive(value)
    if code is not None:
        return posix.Signals(code).name if code in posix.Signals.__members__.values() else None
    found = name(value)
    if found is None:
        return None
    found = found.upper()
    found = found if found.startswith("SIG") else "SIG" + found
    return found if found in _SIGNALS else None


def watchdog_report(record: Stamped) -> WatchdogReport | None:
    get = record.get
    fields = record.identity()
    group = get("nccl.watchdog.pg")
    desc = name(get("nccl.watchdog.pg_desc"))
    number = natural(get("nccl.watchdog.rank"))
    # Only in the group of all ranks is the number of a rank the rank itself.
    whole = group in (None, 0, "0", GLOO) or desc == "default_pg"
    if "rank" not in fields and number is not None and whole:
        fields["rank"] = number
    missing = _ranks(get("nccl.watchdog.missing_ranks")) or _missing_below(_ranks(get("nccl.watchdog.ready_ranks")))
    # If the number differs from the rank, the line is about a smaller group, and the missing numbers are of that group.
    numbered = number is not None and number != fields.get("rank", number) and group is None
    report = WatchdogReport(
        **fields,
        report=word(get("nccl.watchdog.kind")) or "timeout",
        op=name(get("nccl.watchdog.op")),
        seq=natural(get("nccl.watchdog.seq")),
        timeout_ms=natural(get("nccl.watchdog.timeout_ms")),
        elapsed_ms=natural(get("nccl.watchdog.elapsed_ms")),
        last_enqueued=integer(get("nccl.watchdog.last_enqueued")),
        last_started=integer(get("nccl.watchdog.last_started")),
        last_completed=integer(get("nccl.watchdog.last_completed")),
        pg=name(str(group) if type(group) is int else group),
        pg_desc=desc,
        numel_in=natural(get("nccl.watchdog.numel_in")),
        numel_out=natural(get("nccl.watchdog.numel_out")),
        from_rank=natural(get("nccl.watchdog.from_rank")),
        missing=() if numbered else missing,
        missing_in_group=missing if numbered else (),
        frame=_waited_at(record),
        reporter=text(get("nccl.watchdog.reporter"), 64),
        group_rank=number if "rank" not in fields or (numbered and missing) else None,
    )
    said = (word(get("nccl.watchdog.kind")), report.op, report.seq)
    return None if all(value is None for value in said) else report


def _waited_at(record: Stamped) -> str | None:
    """Return the innermost line of user code in the traceback of a rank that gave up waiting."""
    stack = record.log.get("body")
    parsed = tracebacks.parse(stack) if isinstance(stack, str) and tracebacks.HEADER in stack else None
    return f"{parsed.frame.file}:{parsed.frame.line}" if parsed is not None and parsed.frame is not None else None


def _ranks(value: object) -> tuple[int, ...]:
    """Read ranks as a line lists them: `2, 5`."""
    listed = value.split(",", 256)[:256] if isinstance(value, str) else ()
    found = {int(rank) for part in listed if (rank := part.strip()).isdecimal() and len(rank) < 8}
    return tuple(sorted(found))


def _missing_below(ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Return the ranks below the highest of these that are not among them; () if most are missing."""
    known, world = set(ranks), max(ranks, default=-1) + 1
    # Compare the numbers before listing them, because a line may name a rank of seven digits.
    return tuple(rank for rank in range(world) if rank not in known) if world < len(known) + len(ranks) else ()


def nccl_error(record: Stamped) -> NcclError | None:
    error = word(record.get("nccl.error"))
    if error is None:
        return None
    peer = record.get("nccl.error.peer")
    return NcclError(
        **record.identity(),
        error=error,
        peer=name(str(peer) if type(peer) is int else peer),
        detail=text(record.get("nccl.error.detail"), 512),
        device=name(record.get("nccl.error.device")),
        host=name(record.get("nccl.error.host")),
    )


def rendezvous_failure(record: Stamped) -> RendezvousFailure | None:
    failure = word(record.get("tracecore.rendezvous.failure"))
    if failure is None:
        return None
    return RendezvousFailure(
        **record.identity(),
        failure=failure,
        joined=natural(record.get("tracecore.rendezvous.joined")),
        expected=natural(record.get("tracecore.rendezvous.expected")),
        endpoint=name(record.get("tracecore.rendezvous.endpoint")),
        interface=name(record.get("tracecore.rendezvous.interface")),
        claimed=natural(record.get("tracecore.rendezvous.rank")),
        missing=_ranks(record.get("tracecore.rendezvous.missing_ranks")),
        detail=text(record.get("tracecore.rendezvous.detail"), 512),
        refused=word(record.get("tracecore.rendezvous.refused")),
    )


def rendezvous_retry(record: Stamped) -> RendezvousRetry | None:
    problem = word(record.get("tracecore.rendezvous.retry"))
    if problem is None:
        return None
    return RendezvousRetry(
        **record.identity(), problem=problem, endpoint=name(record.get("tracecore.rendezvous.endpoint"))
    )


def exception_raised(record: Stamped) -> ExceptionRaised | None:
    # If a whole block is one record, the traceback is in the body.
    stack = record.get("exception.stacktrace") or record.log.get("body")
    parsed = tracebacks.parse(stack) if isinstance(stack, str) and tracebacks.HEADER in stack else None
    kind = name(record.get("exception.type")) or (parsed.type if parsed else None)
    if kind is None:
        return None
    message = text(record.get("exception.message"))
    whole = text(parsed.message) if parsed is not None else None
    if whole is not None and (message is None or whole.startswith(message)):
        message = whole  # has the further lines, which often contain the reason
    fields: dict[str, Any] = {}
    if parsed is not None:
        fields |= {"caught": parsed.caught, "threaded": parsed.threaded, "origin": parsed.origin}
        if parsed.frame is not None:
            fields |= {"file": parsed.frame.file, "line": parsed.frame.line, "function": parsed.frame.function}
        if parsed.root_type is not None:
            fields |= {"root_type": parsed.root_type, "root_message": text(parsed.root_message)}
    worker = tracebacks.loader_worker(message or "")
    if worker is not None:
        fields["loader_worker"] = worker
    identity = record.identity()
    if "rank" not in identity:
        fields["local_rank"] = natural(record.get("gen_ai.training.local_rank"))
    return ExceptionRaised(
        **identity,
        type=kind,
        message=message,
        pid=positive(record.get("process.pid")),
        lost_peer=flag(record.get("exception.lost_peer")) is True,
        too_slow=flag(record.get("exception.too_slow")) is True,
        **fields,
    )


def stack_printed(record: Stamped) -> StackPrinted | None:
    stack = record.get("code.stacktrace")
    standing = stacks.parse(stack) if isinstance(stack, str) else None
    if standing is None:
        return None
    frame = standing.frame
    own: dict[str, Any] = {}
    if frame is not None:
        own = {"file": text(frame.file), "line": frame.line, "function": text(frame.function)}
    own |= {"waits": standing.waits, "loads": standing.loads}
    return StackPrinted(**record.identity(), inner=text(standing.inner) or "?", **own)


def _reported(record: Stamped) -> dict[str, Any]:
    """Return the identity of the process that a line is about. A launcher's line is about another process."""
    fields = record.identity()
    launcher = record.get("tracecore.launcher")
    if launcher is not None:
        own = fields.pop("rank", None)
        if (rank := natural(record.get(_LAUNCHER + "rank"))) is not None:
            fields["rank"] = rank
            if own not in (None, rank) and launcher != "torchelastic":
                # A rank that reports another rank may be on another node.
                fields = {key: value for key, value in fields.items() if key not in ("node", "pod")}
        host = name(record.get(_LAUNCHER + "host"))
        # torchelastic reports only its own host, which the record knows better. srun reports other hosts.
        if host is not None and (launcher != "torchelastic" or "node" not in fields):
            fields["node"] = host
    return fields


def _pid(record: Stamped) -> int | None:
    return positive(record.get("process.pid")) or positive(record.get(_LAUNCHER + "pid"))


def fatal_signal(record: Stamped) -> FatalSignal | None:
    found = signal_named(record.get("tracecore.process.signal"))
    if found is None:
        return None
    return FatalSignal(**_reported(record), signal=found, pid=_pid(record))


def exit_status(record: Stamped) -> ExitStatus | None:
    code = integer(record.get("tracecore.process.exit_code"))
    alive = flag(record.get("tracecore.process.alive"))
    if (code is None and alive is not True) or (code is not None and not -(1 << 31) <= code < 1 << 32):
        return None
    return ExitStatus(**_reported(record), exit_code=code, alive=code is None, pid=_pid(record))


def launcher_failure(record: Stamped) -> LauncherFailure | None:
    launcher = word(record.get("tracecore.launcher"))
    if launcher is None:
        return None
    parsed = _launcher_traceback(record)
    return LauncherFailure(
        **_reported(record),
        launcher=launcher,
        root=flag(record.get(_LAUNCHER + "root")) is True,
        local_rank=natural(record.get(_LAUNCHER + "local_rank")),
        pid=positive(record.get(_LAUNCHER + "pid")),
        exit_code=integer(record.get(_LAUNCHER + "exit_code")),
        host=name(record.get(_LAUNCHER + "host")),
        failed_at=name(record.get(_LAUNCHER + "time")),
        error_file=name(record.get(_LAUNCHER + "error_file")),
        other_rank=natural(record.get(_LAUNCHER + "other_rank")),
        raised_rank=natural(record.get(_LAUNCHER + "raised_rank")),
        failed=_ranks(record.get(_LAUNCHER + "failed_ranks")),
        exception_type=parsed.type if parsed else None,
        exception_message=text(parsed.message, 512) if parsed else None,
    )


def rank_started(record: Stamped) -> RankStarted | None:
    fields = record.identity()
    if flag(record.get("tracecore.rank.started")) is not True or "rank" not in fields:
        return None
    return RankStarted(**fields, world=positive(record.get("tracecore.rank.world")))


def _launcher_traceback(record: Stamped) -> tracebacks.ParsedTraceback | None:
    """Return the traceback of an entry. If only its first line was stamped, the rest is in the body."""
    stack = record.get(_LAUNCHER + "traceback")
    if not isinstance(stack, str) or not stack:
        return None
    body = record.log.get("body")
    at = body.rfind(stack[:512]) if isinstance(body, str) else -1
    return tracebacks.parse(stack) or (tracebacks.parse(body[at:]) if isinstance(body, str) and at >= 0 else None)


def cuda_error(record: Stamped) -> CudaError | None:
    error = word(record.get("tracecore.cuda.error"))
    if error is None:
        return None
    return CudaError(
        **record.identity(),
        error=error,
        pid=positive(record.get("process.pid")),
        detail=record.body,
        vendor=word(record.get("hw.vendor")),
    )


def loader_error(record: Stamped) -> LoaderError | None:
    error = name(record.get("dataloader.error_class"))
    if error is None:
        return None
    return LoaderError(
        **record.identity(),
        error_class=error,
        worker_pid=positive(record.get("dataloader.worker_pid")),
        signal=signal_named(record.get("dataloader.signal")),
        pod_uid=name(record.get("k8s.pod.uid")),
        retried=flag(record.get("dataloader.retried")) is True,
    )


def cuda_oom(record: Stamped) -> CudaOom | None:
    tried = _bytes(record, "tried_alloc_bytes")
    if tried is None:
        return None
    return CudaOom(
        **record.identity(),
        tried_bytes=tried,
        ordinal=natural(record.get("cuda_oom.gpu_index")),
        free_bytes=_bytes(record, "free_bytes"),
        total_bytes=_bytes(record, "total_bytes"),
        reserved_unallocated_bytes=_bytes(record, "reserved_unallocated_bytes"),
        allocated_bytes=_bytes(record, "allocated_bytes"),
        limit_bytes=_bytes(record, "limit_bytes"),
        backend=word(record.get("cuda_oom.backend")),
        **_devices(record),
    )


def _devices(record: Stamped) -> dict[str, Any]:
    """Return the known settings that define the devices which the process counts."""
    return {
        "visible_devices": text(record.get("process.environment_variable.CUDA_VISIBLE_DEVICES"), 2048),
        "device_order": word(record.get("process.environment_variable.CUDA_DEVICE_ORDER")),
        "pod_gpus": text(record.get("tracecore.pod.gpus"), 2048),
    }


def _bytes(record: Stamped, number: str) -> int | None:
    value = magnitude(record.get("cuda_oom." + number))
    return None if value is None else integer(float(round(value))) if isinstance(value, float) else value


def cuda_oom_unmeasured(record: Stamped) -> CudaOomUnmeasured | None:
    backend = word(record.get("cuda_oom.backend"))
    if backend is None or _bytes(record, "tried_alloc_bytes") is not None:
        return None
    ordinal = natural(record.get("cuda_oom.gpu_index"))
    return CudaOomUnmeasured(
        **record.identity(), backend=backend, ordinal=ordinal, detail=record.body, **_devices(record)
    )


def storage_error(record: Stamped) -> StorageError | None:
    error = word(record.get("tracecore.storage.error"))
    if error is None:
        return None
    identity = record.identity()
    rank = natural(record.get("tracecore.storage.rank"))
    if rank is not None and rank != identity.get("rank"):
        # The rank that repeats the error may run on another machine.
        identity = {key: value for key, value in identity.items() if key not in ("node", "pod", "gpu")} | {"rank": rank}
    return StorageError(
        **identity,
        error=error,
        path=name(record.get("tracecore.storage.path")),
        backend=word(record.get("tracecore.storage.backend")),
        device=name(record.get("tracecore.storage.device")),
        retried=flag(record.get("tracecore.storage.retried")) is True,
    )


WORKER = (
    Projection(exception_raised, either=("exception.type", "exception.stacktrace")),
    Projection(stack_printed, gate=("code.stacktrace",)),
    Projection(fatal_signal, gate=("tracecore.process.signal",)),
    Projection(exit_status, either=("tracecore.process.exit_code", "tracecore.process.alive")),
    Projection(launcher_failure, gate=("tracecore.launcher",)),
    Projection(rank_started, gate=("tracecore.rank.started",)),
    Projection(cuda_error, gate=("tracecore.cuda.error",)),
    Projection(cuda_oom, gate=("cuda_oom.tried_alloc_bytes",)),
    Projection(cuda_oom_unmeasured, gate=("cuda_oom.backend",)),
    Projection(loader_error, gate=("dataloader.error_class",)),
    Projection(storage_error, gate=("tracecore.storage.error",)),
    Projection(watchdog_report, either=("nccl.watchdog.kind", "nccl.watchdog.op", "nccl.watchdog.seq")),
    Projection(nccl_error, gate=("nccl.error",)),
    Projection(rendezvous_failure, gate=("tracecore.rendezvous.failure",)),
    Projection(rendezvous_retry, gate=("tracecore.rendezvous.retry",)),
)

"""Projectors of progress lines, checkpoints, values and evaluation."""

from __future__ import annotations

import re
from math import isfinite

from tracecore.facts.coerce import flag, magnitude, name, natural, number, positive, text, word
from tracecore.facts.identity import Stamped
from tracecore.facts.projectors.projector import Projection
from tracecore.facts.training import (
    CheckpointPhase,
    EvalAccuracy,
    NonFinite,
    Preparation,
    Progress,
    ReplicaMismatch,
    ResultRecomputed,
    RunFinished,
    SaveAwaited,
    SlowRanks,
    StepStalled,
)

_STALL = "tracecore.alert.training_step_stalled.no_progress_seconds"
_PREPARATION = "tracecore.training.preparation"
_CHECKPOINT = "tracecore.training.checkpoint.phase"
_EXPLICIT = "tracecore.training.non_finite.explicit"
_EVENTS = frozenset({"begin", "end", "error"})
_UNREAL = frozenset({"nan", "inf", "infinity"})
#: Reporters that write a line about each single step.
_OF_ONE_STEP = frozenset({"the program's own times", "the program's own comparison"})
#: As in the straggler pattern: minimum number of ranks, how many times the median is slow, and the maximum share of
#: slow ranks.
_COHORT, _SLOW, _CROWD = 4, 1.5, 0.25
_PAIR = re.compile(r"(?i)r(?:ank)?[ _]?(\d{1,7})[\"']?[=:] ?(\d+(?:\.\d+)?)")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_RANK = re.compile(r"(?<![\w.])\d{1,7}(?![\w.])|(?<=rank=)\d{1,7}")


def progress(record: Stamped) -> Progress | None:
    # These lines mention a step but do not report progress.
    get = record.get
    if get(_STALL) is not None or get(_CHECKPOINT) is not None or get(_EXPLICIT) is not None:
        return None
    until = positive(get("tracecore.report.until_unix_nano"))
    made = Progress(
        **record.identity(),
        count=positive(get("tracecore.report.count")) or 1,
        last_time=until if until is not None and until > record.time else None,
        step=natural(get("gen_ai.training.step")),
        phase=word(get("gen_ai.training.phase")),
        iter_time_s=magnitude(get("tracecore.training.iter_time_s")),
        data_time_s=magnitude(get("tracecore.training.data_time_s")),
        loss=number(get("tracecore.training.loss")),
        grad_norm=number(get("tracecore.training.grad_norm")),
        learning_rate=number(get("tracecore.training.learning_rate")),
        total_steps=positive(get("tracecore.training.total_steps")),
        epoch=magnitude(get("tracecore.training.epoch")),
        pid=positive(get("process.pid")),
    )
    said = (made.step, made.phase, made.iter_time_s, made.data_time_s, made.loss, made.grad_norm)
    return None if all(value is None for value in said) else made


def step_stalled(record: Stamped) -> StepStalled | None:
    quiet = magnitude(record.get(_STALL))
    if quiet is None or quiet > 10 * 365 * 86400:
        return None
    return StepStalled(
        **record.identity(),
        no_progress_s=quiet,
        step=natural(record.get("gen_ai.training.step")),
        phase=word(record.get("gen_ai.training.phase")),
    )


def preparation(record: Stamped) -> Preparation | None:
    what = name(record.get(_PREPARATION))
    if what is None:
        return None
    return Preparation(**record.identity(), what=what, done=flag(record.get(_PREPARATION + ".done")))


def checkpoint_phase(record: Stamped) -> CheckpointPhase | None:
    phase, event = word(record.get(_CHECKPOINT)), word(record.get("tracecore.training.checkpoint.event"))
    if phase is None or event not in _EVENTS:
        return None
    step = natural(record.get("gen_ai.training.checkpoint.step"))
    return CheckpointPhase(
        **record.identity(),
        phase=phase,
        event=event,
        path=name(record.get("tracecore.training.checkpoint.path")),
        step=step if step is not None else natural(record.get("gen_ai.training.step")),
    )


def save_awaited(record: Stamped) -> SaveAwaited | None:
    ranks = _RANK.findall(text(record.get("tracecore.training.checkpoint.missing"), 1024) or "")
    return SaveAwaited(**record.identity(), missing=tuple(sorted(set(map(int, ranks))))) if ranks else None


def non_finite(record: Stamped) -> NonFinite | None:
    what = word(record.get("tracecore.training.non_finite")) or _unreal(record)
    if what is None:
        return None
    # A report prints the value with other numbers. A line with only this value is a complaint of the program.
    reported = any(
        record.own.get(n) is not None
        for n in (
            "gen_ai.training.step",
            "tracecore.training.iter_time_s",
            "tracecore.training.learning_rate",
            "tracecore.training.loss",
            "tracecore.training.grad_norm",
            "tracecore.training.epoch",
        )
    )
    return NonFinite(
        **record.identity(),
        what=what,
        step=natural(record.get("gen_ai.training.step")),
        explicit=flag(record.get(_EXPLICIT)) is True or not reported,
        phase=word(record.get("gen_ai.training.phase")),
    )


def _unreal(record: Stamped) -> str | None:
    """Return the measure of a report whose value is not finite. A metric can show it only like this."""
    for what in ("loss", "grad_norm"):
        value = record.get("tracecore.training." + what)
        if isinstance(value, str):
            value = float(value) if value.strip().lower().lstrip("+-") in _UNREAL else None
        if isinstance(value, float) and not isfinite(value):
            return what
    return None


def result_recomputed(record: Stamped) -> ResultRecomputed | None:
    outcome = word(record.get("tracecore.training.recomputed"))
    if outcome not in ("changed", "changed_elsewhere", "repeated"):
        return None
    return ResultRecomputed(
        **record.identity(),
        outcome=outcome,
        step=natural(record.get("tracecore.training.recomputed.step")),
        device=natural(record.get("tracecore.training.recomputed.device")),
    )


def eval_accuracy(record: Stamped) -> EvalAccuracy | None:
    observed = number(record.get("gen_ai.training.eval_accuracy.observed"))
    if observed is None:
        return None
    return EvalAccuracy(
        **record.identity(),
        observed=observed,
        baseline=number(record.get("gen_ai.training.eval_accuracy.baseline")),
        checksum=_checksum(record.get("gen_ai.training.eval_set.checksum")),
        checkpoint_step=natural(record.get("gen_ai.training.checkpoint.step")),
        baseline_checksum=_checksum(record.get("gen_ai.training.eval_set.baseline_checksum")),
        baseline_step=natural(record.get("gen_ai.training.checkpoint.baseline_step")),
        job_start=positive(record.get("gen_ai.training.job.start_unix_nano")),
        job_end=positive(record.get("gen_ai.training.job.end_unix_nano")),
        compared=flag(record.get("gen_ai.training.eval_accuracy.compared")) is True,
    )


def _checksum(value: object) -> str | None:
    return name(str(value) if type(value) is int else value)


def run_finished(record: Stamped) -> RunFinished | None:
    if flag(record.get("tracecore.training.finished")) is not True:
        return None
    always = flag(record.get("tracecore.training.finished.always")) is True
    whole = flag(record.get("tracecore.training.finished.whole")) is True
    step = natural(record.get("gen_ai.training.step"))
    return RunFinished(**record.identity(), step=step, always=always, whole=whole)


def replica_mismatch(record: Stamped) -> ReplicaMismatch | None:
    odd = natural(record.get("tracecore.training.replica_mismatch"))
    if odd is None:
        return None
    return ReplicaMismatch(**record.identity(), odd=odd, step=natural(record.get("gen_ai.training.step")))


def slow_ranks(record: Stamped) -> SlowRanks | None:
    reporter = text(record.get("tracecore.straggler.reporter"), 64)
    if reporter is None:
        return None
    if isinstance(times := record.get("tracecore.straggler.times"), str):
        return _by_times(record, reporter, times)
    listed = record.get("tracecore.straggler.ranks")
    found = {natural(int(word)) for word in _RANK.findall(listed)} if isinstance(listed, str) else set()
    return SlowRanks(
        **record.identity(),
        reporter=reporter,
        slow=tuple(sorted(rank for rank in found if rank is not None)),
        ratio=number(record.get("tracecore.straggler.ratio")),
        machine=name(record.get("tracecore.straggler.node")),
        each=reporter in _OF_ONE_STEP,
    )


def _by_times(record: Stamped, reporter: str, times: str) -> SlowRanks | None:
    """Return the ranks that take at least `_SLOW` times the median, by the times of all ranks in one step."""
    first = natural(record.get("tracecore.straggler.first_rank")) or 0
    pairs = [(int(rank), float(took)) for rank, took in _PAIR.findall(times)]
    took = dict(pairs) or {first + place: float(text) for place, text in enumerate(_NUMBER.findall(times))}
    if len(took) < _COHORT:
        return None
    middle = sorted(took.values())[len(took) // 2]
    slow = [rank for rank, seconds in sorted(took.items()) if middle > 0 and seconds >= _SLOW * middle]
    most, least = max(took.values()), min(took.values())
    return SlowRanks(
        **record.identity(),
        reporter=reporter,
        slow=tuple(slow) if len(slow) <= _CROWD * len(took) else (),
        ratio=most / least if least > 0 else None,
        each=True,
    )


TRAINING = (
    Projection(
        progress,
        either=(
            "gen_ai.training.step",
            "gen_ai.training.phase",
            "tracecore.training.iter_time_s",
            "tracecore.training.data_time_s",
            "tracecore.training.loss",
            "tracecore.training.grad_norm",
        ),
    ),
    Projection(step_stalled, gate=(_STALL,)),
    Projection(checkpoint_phase, gate=(_CHECKPOINT, "tracecore.training.checkpoint.event")),
    Projection(save_awaited, gate=("tracecore.training.checkpoint.missing",)),
    Projection(
        non_finite,
        either=("tracecore.training.non_finite", "tracecore.training.loss", "tracecore.training.grad_norm"),
    ),
    Projection(preparation, gate=(_PREPARATION,)),
    Projection(result_recomputed, gate=("tracecore.training.recomputed",)),
    Projection(eval_accuracy, gate=("gen_ai.training.eval_accuracy.observed",)),
    Projection(run_finished, gate=("tracecore.training.finished",)),
    Projection(replica_mismatch, gate=("tracecore.training.replica_mismatch",)),
    Projection(slow_ranks, gate=("tracecore.straggler.reporter",)),
)

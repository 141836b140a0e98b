"""Progress lines, checkpoints, values, evaluation."""

from __future__ import annotations

from tracecore.facts.coerce import flag, magnitude, name, natural, number, positive, word
from tracecore.facts.identity import Stamped
from tracecore.facts.projectors.projector import Projection
from tracecore.facts.training import CheckpointPhase, EvalAccuracy, NonFinite, Progress, RunFinished, StepStalled

_T = "tracecore.training."
_G = "gen_ai.training."
_STALL = "tracecore.alert.training_step_stalled.no_progress_seconds"
_CHECKPOINT = _T + "checkpoint.phase"
_EVENTS = frozenset({"begin", "end", "error"})


def progress(record: Stamped) -> Progress | None:
    # These lines mention a step without having made one.
    if record.get(_STALL) is not None or record.get(_CHECKPOINT) is not None:
        return None
    get = record.get
    made = Progress(
        **record.identity(),
        step=natural(get(_G + "step")),
        phase=word(get(_G + "phase")),
        iter_time_s=magnitude(get(_T + "iter_time_s")),
        data_time_s=magnitude(get(_T + "data_time_s")),
        loss=number(get(_T + "loss")),
        grad_norm=number(get(_T + "grad_norm")),
        learning_rate=number(get(_T + "learning_rate")),
        total_steps=positive(get(_T + "total_steps")),
        epoch=magnitude(get(_T + "epoch")),
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
        step=natural(record.get(_G + "step")),
        phase=word(record.get(_G + "phase")),
    )


def checkpoint_phase(record: Stamped) -> CheckpointPhase | None:
    phase, event = word(record.get(_CHECKPOINT)), word(record.get(_T + "checkpoint.event"))
    if phase is None or event not in _EVENTS:
        return None
    return CheckpointPhase(
        **record.identity(),
        phase=phase,
        event=event,
        path=name(record.get(_T + "checkpoint.path")),
        step=natural(record.get(_G + "step")),
    )


def non_finite(record: Stamped) -> NonFinite | None:
    what = word(record.get(_T + "non_finite"))
    if what is None:
        return None
    # A report prints the value beside other numbers; a line of its own is the program's complaint.
    reported = any(
        record.own.get(n) is not None
        for n in (_G + "step", _T + "iter_time_s", _T + "learning_rate", _T + "loss", _T + "grad_norm", _T + "epoch")
    )
    return NonFinite(**record.identity(), what=what, step=natural(record.get(_G + "step")), explicit=not reported)


def eval_accuracy(record: Stamped) -> EvalAccuracy | None:
    observed = number(record.get(_G + "eval_accuracy.observed"))
    if observed is None:
        return None
    checksum = record.get(_G + "eval_set.checksum")
    return EvalAccuracy(
        **record.identity(),
        observed=observed,
        baseline=number(record.get(_G + "eval_accuracy.baseline")),
        checksum=name(str(checksum) if type(checksum) is int else checksum),
        checkpoint_step=natural(record.get(_G + "checkpoint.step")),
        job_start=positive(record.get(_G + "job.start_unix_nano")),
        job_end=positive(record.get(_G + "job.end_unix_nano")),
    )


def run_finished(record: Stamped) -> RunFinished | None:
    if flag(record.get(_T + "finished")) is not True:
        return None
    return RunFinished(**record.identity(), step=natural(record.get(_G + "step")))


TRAINING = (
    Projection(
        progress,
        either=(_G + "step", _G + "phase", *(_T + n for n in ("iter_time_s", "data_time_s", "loss", "grad_norm"))),
    ),
    Projection(step_stalled, gate=(_STALL,)),
    Projection(checkpoint_phase, gate=(_CHECKPOINT, _T + "checkpoint.event")),
    Projection(non_finite, gate=(_T + "non_finite",)),
    Projection(eval_accuracy, gate=(_G + "eval_accuracy.observed",)),
    Projection(run_finished, gate=(_T + "finished",)),
)

"""Facts about the training itself: steps, stalls, checkpoints, values, evaluation."""

from __future__ import annotations

from typing import ClassVar

from tracecore.facts.fact import Fact
from tracecore.facts.wording import SECOND, seconds, sentence


class Progress(Fact, frozen=True, kw_only=True):
    """A progress line. Values that the line does not have, or that are not finite, are None.

    Args:
        phase: train, eval, checkpoint or init.
        iter_time_s: seconds of the step.
        data_time_s: seconds of the step spent waiting for data.
        pid: the process, if the line names it.
    """

    kind: ClassVar[str] = "training_progress"
    layer: ClassVar[str] = "stdout"

    step: int | None = None
    phase: str | None = None
    iter_time_s: float | None = None
    data_time_s: float | None = None
    loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    total_steps: int | None = None
    epoch: float | None = None
    pid: int | None = None

    def describe(self) -> str:
        of = f" of {self.total_steps}" if self.total_steps is not None else ""
        parts = [f"{self.phase or 'training'} step {self.step}{of}" if self.step is not None else "training progress"]
        if self.loss is not None:
            parts.append(f"loss {self.loss:g}")
        if self.grad_norm is not None:
            parts.append(f"gradient norm {self.grad_norm:g}")
        if self.iter_time_s is not None:
            parts.append(f"{self.iter_time_s:g} s")
        if self.data_time_s is not None:
            parts.append(f"of which data {self.data_time_s:g} s")
        return sentence(self, ", ".join(parts))


class Preparation(Fact, frozen=True, kw_only=True):
    """Work that is no training step: preparing data, a download, loading weights.

    Args:
        what: the words before its progress bar, or of the line that says that it begins.
        done: the bar is complete; None if there is no bar.
    """

    kind: ClassVar[str] = "preparation"
    layer: ClassVar[str] = "stdout"
    folds: ClassVar[bool] = True

    what: str
    done: bool | None = None

    def describe(self) -> str:
        return sentence(self, f"{'done with' if self.done else 'busy with'} `{self.what}`")


class StepStalled(Fact, frozen=True, kw_only=True):
    """The step has not advanced. A stall that grows is stated again under the same uid with a later `last_time`.

    `time` is when the stall was first stated, `since` is the time of the last progress.

    Args:
        no_progress_s: seconds without progress, up to `end`.
        step: the last step reached.
        phase: the phase of the run; None if not known.
    """

    kind: ClassVar[str] = "training_step_stall"
    layer: ClassVar[str] = "stdout"

    no_progress_s: float
    step: int | None = None
    phase: str | None = None

    @property
    def since(self) -> int:
        """Return the time of the last progress in nanoseconds since the epoch."""
        return self.end - int(self.no_progress_s * SECOND)

    def describe(self) -> str:
        step = f" past step {self.step}" if self.step is not None else ""
        phase = f" in phase {self.phase}" if self.phase else ""
        return sentence(self, f"no progress{step} for {seconds(self.no_progress_s)}{phase}")


class CheckpointPhase(Fact, frozen=True, kw_only=True):
    """A phase of saving or loading a checkpoint began, ended or failed.

    Args:
        phase: plan, write, barrier or load.
        event: begin, end or error.
    """

    kind: ClassVar[str] = "checkpoint_phase"
    layer: ClassVar[str] = "stdout"

    phase: str
    event: str
    path: str | None = None
    step: int | None = None

    def describe(self) -> str:
        word = {"begin": "began", "end": "ended", "error": "failed"}.get(self.event, self.event)
        path = f" of {self.path}" if self.path else ""
        step = f" at step {self.step}" if self.step is not None else ""
        return sentence(self, f"checkpoint {self.phase}{path}{step} {word}")


class SaveAwaited(Fact, frozen=True, kw_only=True):
    """A rank says that other ranks have not written their parts of a checkpoint.

    Args:
        missing: the ranks that have not.
    """

    kind: ClassVar[str] = "save_awaited"
    layer: ClassVar[str] = "stdout"
    folds: ClassVar[bool] = True

    missing: tuple[int, ...]

    def describe(self) -> str:
        ranks = f"rank{'s' if len(self.missing) > 1 else ''} {', '.join(map(str, self.missing[:16]))}"
        return sentence(self, f"the checkpoint is not complete without {ranks}")


class NonFinite(Fact, frozen=True, kw_only=True):
    """A line says that a value is not finite.

    Args:
        what: loss, grad_norm, gradient, activation or parameter.
        explicit: the program stopped or warned because of it, and did not only print the value in a report.
        phase: train, eval …; None if not known.
    """

    kind: ClassVar[str] = "non_finite"
    layer: ClassVar[str] = "stdout"

    what: str
    step: int | None = None
    explicit: bool = False
    phase: str | None = None

    def describe(self) -> str:
        step = f" at step {self.step}" if self.step is not None else ""
        return sentence(self, f"{self.what.replace('_', ' ')} is not finite{step}")


class ResultRecomputed(Fact, frozen=True, kw_only=True):
    """A program got an unexpected result, computed it again, and compared the two.

    Args:
        outcome: `changed` on the same GPU, `changed_elsewhere` on another GPU, or `repeated` on the same GPU.
        step: the step.
        device: CUDA's number of the GPU that computed it again.
    """

    kind: ClassVar[str] = "result_recomputed"
    layer: ClassVar[str] = "stdout"
    folds: ClassVar[bool] = True

    outcome: str
    step: int | None = None
    device: int | None = None

    def describe(self) -> str:
        what = {"changed": "another result on the same GPU", "changed_elsewhere": "another result on another GPU"}
        step = f" of step {self.step}" if self.step is not None else ""
        return sentence(self, f"an unexpected result{step} computed again: {what.get(self.outcome, 'the same result')}")


class EvalAccuracy(Fact, frozen=True, kw_only=True):
    """The accuracy of an evaluation, with its baseline.

    Args:
        checksum: checksum of the evaluation set.
        checkpoint_step: step of the evaluated checkpoint.
        baseline_checksum: checksum of the set on which the baseline was measured.
        baseline_step: step of the checkpoint on which the baseline was measured.
        job_start: nanoseconds since the epoch.
        job_end: nanoseconds since the epoch.
        compared: a program evaluates one checkpoint on several machines, and this is one of them.
    """

    kind: ClassVar[str] = "eval_accuracy"
    layer: ClassVar[str] = "stdout"

    observed: float
    baseline: float | None = None
    checksum: str | None = None
    checkpoint_step: int | None = None
    baseline_checksum: str | None = None
    baseline_step: int | None = None
    job_start: int | None = None
    job_end: int | None = None
    compared: bool = False

    def describe(self) -> str:
        base = f", baseline {self.baseline:g}" if self.baseline is not None else ""
        return sentence(self, f"evaluation accuracy {self.observed:g}{base}")


class RunFinished(Fact, frozen=True, kw_only=True):
    """The program reports that the run is complete.

    Args:
        always: the program writes this line after a failure of the training, too.
        whole: the line says that all parts of the run ended well, whatever happened to their processes before.
    """

    kind: ClassVar[str] = "run_finished"
    layer: ClassVar[str] = "stdout"
    folds: ClassVar[bool] = True

    step: int | None = None
    always: bool = False
    whole: bool = False

    def describe(self) -> str:
        return sentence(self, "the run says it is complete")


class ReplicaMismatch(Fact, frozen=True, kw_only=True):
    """A program that compares the parameters of replicas finds those of one rank different.

    Args:
        odd: the rank that differs. Another rank may report it.
    """

    kind: ClassVar[str] = "replica_mismatch"
    layer: ClassVar[str] = "stdout"

    odd: int
    step: int | None = None

    def describe(self) -> str:
        return sentence(self, f"the parameters of rank {self.odd} differ from those of its replicas")


class SlowRanks(Fact, frozen=True, kw_only=True):
    """A report about slow ranks, from an external detector or from the program.

    Args:
        reporter: the name of the detector.
        slow: the ranks that it names; empty if it finds none.
        ratio: the time of the slowest rank divided by that of the fastest, if given.
        machine: the machine of the rank, if given.
        each: the report is about one step only. A detector looks at several steps.
    """

    kind: ClassVar[str] = "slow_ranks"
    layer: ClassVar[str] = "stdout"
    folds: ClassVar[bool] = True
    varying: ClassVar[frozenset[str]] = frozenset({"ratio"})

    reporter: str
    slow: tuple[int, ...] = ()
    ratio: float | None = None
    machine: str | None = None
    each: bool = False

    def describe(self) -> str:
        if not self.slow:
            return sentence(self, f"{self.reporter} finds no rank slow")
        ranks = f"rank{'s' if len(self.slow) > 1 else ''} {', '.join(map(str, self.slow))}"
        times = f" ({self.ratio:.2f} times the fastest)" if self.ratio is not None else ""
        return sentence(self, f"{self.reporter} finds {ranks} slow{times}")

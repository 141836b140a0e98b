"""Logs composed of several statements, in jobs of several attempts, so that `classify` and policies must decide.

A log joins lines of some of the rules' cases: in any order, labelled with ranks, between steps, after a thousand other
lines, before the end of the run. The process ends in some way. What `classify` says, and what a policy decides about
attempt after attempt, is recorded, so that a change of either shows every decision that changes with it:

    python tests/actions/composed_logs.py       # record them anew, after a change that is meant

A line is a number, a digest of everything that was said and decided, and class, rule and decision of each attempt. The
numbers are chosen, because each notices a mutation that no other does (`tests.mutants.choosing`).
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from ruamel.yaml import YAML

from tracecore.actions import policy as policies
from tracecore.actions import rules
from tracecore.actions.classify import classify
from tracecore.actions.ledger import FailureLedger
from tracecore.actions.supervisor.judgement import _bounded
from tracecore.patterns import PATTERNS

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from recorded_lines import read, write

PATH = Path(__file__).resolve().parent / "recorded" / "composed.txt"
#: So many stories are recorded at first.
FIRST = 120
SECOND = 1_000_000_000
CODES = (None, None, 0, 0, 1, 1, 1, 1, 2, 134, 137, -9, -6, -15, 143, 255)
SIGNALS = (*(None,) * 10, "SIGKILL", "9", "sigterm", 11)
ENDS = ("[2026-01-01 10:20:30] Training finished\n", "Training completed successfully.\n", "")
TRACEBACK = """Traceback (most recent call last):
  File "/work/train.py", line {line}, in {name}
    step(batch)
{error}
"""
ERRORS = (
    "ValueError: bad row 7", "KeyError: 'text'", "torch.cuda.OutOfMemoryError: CUDA out of memory.",
    "OSError: [Errno 28] No space left on device", "ConnectionResetError: [Errno 104] Connection reset by peer",
    "RuntimeError: NCCL communicator was aborted on rank 1.",
)  # fmt: skip
TABLE = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_10:00:00
  host      : n1
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: 14750)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
WATCHDOG = (
    "[rank{rank}]:[E101 10:10:00.1 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE, NumelIn=9, NumelOut=9, Timeout(ms)=600000) ran for 600104 "
    "milliseconds before timing out.\n"
)
FILLER = "".join(f"loading shard {number} of the corpus into the cache\n" for number in range(400))


@cache
def _cases() -> list[dict[str, Any]]:
    with rules.path().with_name("classes.cases.yaml").open(encoding="utf-8") as file:
        return list(YAML(typ="safe", pure=True).load(file)["cases"])


def candidates(number: int) -> list[str]:
    """Return the names of so many further stories."""
    return [str(FIRST + n) for n in range(number)]


def outcome(name: str) -> str:
    """Return what is said and decided in a story."""
    rng = random.Random(f"composed {name}")
    policy = policies.named(rng.choice(policies.names()))
    ledger = FailureLedger(job="j")
    said: list[Any] = []
    brief: list[str] = []
    most = rng.choice((None, None, 0, 1, 3))
    one = _attempt(rng)
    for number in range(rng.choice((1, 1, 2, 4, 7))):
        given = one if rng.random() < 0.5 else _attempt(rng)
        now = number * rng.choice((1, 60, 3600)) * SECOND
        info = classify(**given, now=now, policy=policy, redact=rng.random() < 0.8)
        ledger.progress(step=info.step, checkpoint=rng.choice((None, None, number, "last")))
        decision = _bounded(policy.decide(info, ledger, now), ledger, most)
        ledger.record(info, decision, now)
        said += [info.document(), msgspec.to_builtins(decision)]
        brief.append(f"{info.failure_class}/{info.evidence.rule}/{'retry' if decision.retry else 'stop'}")
    said.append(msgspec.to_builtins(ledger))
    return " ".join([hashlib.sha256(msgspec.json.encode(said)).hexdigest()[:10], *brief])


def _attempt(rng: random.Random) -> dict[str, Any]:
    """Return the arguments of `classify` for one attempt."""
    log = "".join(_piece(rng) for _ in range(rng.choice((0, 1, 1, 2, 3, 4, 6))))
    if rng.random() < 0.2:
        log = FILLER + log
    if rng.random() < 0.1:
        log += FILLER
    log += rng.choice((*ENDS, "", ""))
    if rng.random() < 0.1:
        log = log.rstrip("\n")
    verdict: Any = rng.choice([kind.name for kind in PATTERNS]) if rng.random() < 0.12 else None
    if verdict and rng.random() < 0.3:
        verdict = {"pattern.name": verdict}
    reasons = [case["reason"] for case in _cases() if case.get("reason")]
    return {
        "exit_code": rng.choice(CODES),
        "signal": rng.choice(SIGNALS),
        "log_tail": log.encode() if rng.random() < 0.3 else log,
        "verdict": verdict,
        "reason": rng.choice((*reasons, "Unheard", "")) if rng.random() < 0.2 else None,
    }


def _piece(rng: random.Random) -> str:
    """Return some lines of a log."""
    rank = rng.choice((0, 1, 2, 5))
    what = rng.random()
    if what < 0.2:
        first, label = rng.choice((1, 10, 90)), rng.choice(("", "", f"[rank{rank}]: "))
        return "".join(
            f"{label}[2026-01-01 10:{rng.choice((0, 5)):02d}:{n % 60:02d}] step {n} | loss 1.5 | iter_time 0.1\n"
            for n in range(first, first + rng.choice((1, 2, 3, 5, 70)))
        )
    if what < 0.3:
        return WATCHDOG.format(rank=rank) * rng.choice((1, 1, 15))
    if what < 0.35:
        return TABLE.format(rank=rank, code=rng.choice((1, -9, -6)))
    if what < 0.6:
        text = TRACEBACK.format(line=rng.choice((7, 9)), name=rng.choice(("train", "save")), error=rng.choice(ERRORS))
    else:
        text = str(rng.choice([case for case in _cases() if case.get("log")])["log"]).rstrip("\n") + "\n"
    if rng.random() < 0.3:
        text = "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())
    if rng.random() < 0.15:
        text = "".join(f"2026-01-01 10:{rng.randrange(60):02d}:00,000 {line}\n" for line in text.splitlines())
    return text * rng.choice((1, 1, 1, 1, 2, 14))


def recorded() -> dict[str, str]:
    """Return what was recorded by the name of the story."""
    return read(PATH)


def record(which: Iterable[str]) -> None:
    """Record what is said and decided in these stories."""
    write(PATH, ((name, outcome(name)) for name in which))


if __name__ == "__main__":
    record(recorded() or map(str, range(FIRST)))
    sys.exit(0)

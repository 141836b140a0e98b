"""Statements of a log about its end: which rule speaks, whether it was survived, and which one decides."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

import msgspec

from tracecore.actions.rules import ClassRule, Role, Rules
from tracecore.actions.tail import NUMBERS, Made, read_progress
from tracecore.facts.fact import Fact
from tracecore.facts.process import ExceptionRaised, FatalSignal, LauncherFailure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracecore.actions.tail import Stated, Tail

#: Lines with a phrase that are looked at, from either end of the tail.
MAX_PHRASES: Final = 200
#: A statement without a rank was survived if so many steps follow: one or two may be another process's.
STEPS_AFTER: Final = 3
#: An uncaught error ends its process in much less than that; two causes of one process further apart are two.
LATER_NS: Final = 120 * 1_000_000_000


class RuleMatch(msgspec.Struct, kw_only=True):
    """One line or block to which a rule speaks.

    Args:
        role: the rule's, or `talk` where the line only warns.
        offset, end: bytes of the tail.
        line: 1-based line of the tail.
        text: the line that decided, as it stands there.
        survived: why it did not matter; empty where it may have.
        warned: the line is of a level that only warns.
        complains: it has a word of complaint.
        bare: a worker's words without an exception or a signal: they mean nothing where the process ended well.
    """

    rule: ClassRule
    role: Role
    offset: int
    end: int
    line: int
    text: str
    fact: Fact | None = None
    rank: int | None = None
    attempt: int = 0
    time: int | None = None
    survived: str = ""
    warned: bool = False
    complains: bool = True
    bare: bool = False


class Account(msgspec.Struct, frozen=True):
    """Everything that a log says of its end: each statement, in order, and the furthest step.

    Args:
        facts: of all lines but those that were survived.
    """

    statements: list[RuleMatch]
    step: int | None = None
    facts: list[Fact] = []


def account(tail: Tail, rules: Rules) -> Account:
    """Every statement of a tail, and which of them were survived."""
    found = [one for stated in tail.stated if (one := _stated(stated, tail, rules)) is not None]
    found += _phrases(tail, rules, found)
    found.sort(key=lambda one: one.offset)
    attempt = 0
    for one in found:
        # A line that no recipe knows belongs to the attempt of what stands around it.
        attempt = one.attempt = max(one.attempt, attempt) if one.fact is None else one.attempt
    made = read_progress(tail, (one.end for one in found if one.role != "chatter"))
    _survivals(found, made)
    survived = {one.offset for one in found if one.survived}
    facts = [fact for stated in tail.stated if stated.source.offset not in survived for fact in stated.facts]
    return Account(found, max((one.step for one in made if one.step is not None), default=None), facts)


def decisive(found: Sequence[RuleMatch], *, ended: bool = True, healthy: bool = False) -> RuleMatch | None:
    """The statement that says why it ended; None where none does.

    Args:
        ended: it is known that the process failed; where it is not, a line has to complain to count as talk.
        healthy: the process says that it ended well, so that words alone, talk and mere endings mean nothing.
    """
    standing = [one for one in found if not one.survived and one.role != "chatter" and not (healthy and one.bare)]
    causes = [one for one in standing if one.role in ("cause", "error")]
    stops = [one for one in standing if one.role == "stop"]
    if stops and not (causes and causes[0].offset < stops[0].offset):
        return stops[0]
    if causes:
        return _first(causes, standing)
    for role in ("crash", "symptom") if healthy else ("crash", "symptom", "talk", "ending"):
        said = [one for one in standing if one.role == role]
        if role == "talk":
            # A line that complains says more than one that warns. Among words the order of evidence decides, and of
            # lines with the same meaning the last is nearest to the end.
            said = [one for one in said if one.complains or ended or one.fact is not None]
            said = [one for one in said if not one.warned] or said
        if said:
            # The first failure causes the others.
            return min(reversed(said), key=_rank_of_evidence) if role == "talk" else _first(said, standing)
    return None


def _rank_of_evidence(one: RuleMatch) -> int:
    return one.rule.line


def why_not(one: RuleMatch, chosen: RuleMatch) -> str:
    """Return why a statement did not decide, in a few words."""
    if one.survived:
        return one.survived
    if one.role == "chatter":
        return "known to be harmless"
    if one.role in ("symptom", "crash", "ending") and chosen.role in ("cause", "error", "stop"):
        return "follows from it" if one.offset > chosen.offset else "says less about why"
    if one.role == "talk" and chosen.role != "talk":
        return "may be chatter"
    return "came later" if one.offset > chosen.offset else "says less about why"


def _first(said: Sequence[RuleMatch], standing: Sequence[RuleMatch]) -> RuleMatch:
    """The first of them; of the rank that the launcher saw fail first, where it names one that said something."""
    for row in standing:
        if isinstance(row.fact, LauncherFailure) and row.fact.root and row.fact.rank is not None:
            own = [one for one in said if one.rank == row.fact.rank]
            return own[0] if own else said[0]
    return said[0]


def _stated(stated: Stated, tail: Tail, rules: Rules) -> RuleMatch | None:
    matched = rules.for_stated(stated)
    if matched is None:
        return None
    rule, fact = matched
    fatal = any(isinstance(one, ExceptionRaised | FatalSignal) for one in stated.facts)
    layer = fact.layer if fact is not None else "stdout"
    role = rule.role
    warned = not fatal and layer == "stdout" and rules.warned(stated.body)
    if warned and role in ("cause", "error", "symptom"):
        role = "talk"
    source = stated.source
    known = fact if fact is not None else (stated.facts[0] if stated.facts else None)
    line, text = _quoted(stated)
    return RuleMatch(
        rule=rule,
        role=role,
        offset=source.offset,
        end=source.offset + source.length,
        line=source.line + line,
        text=text,
        fact=fact,
        rank=known.rank if known is not None else None,
        attempt=known.attempt if known is not None else 0,
        time=known.time if known is not None and not known.approximate else None,
        warned=warned,
        bare=layer == "stdout" and not fatal and not isinstance(fact, LauncherFailure),
    )


def _quoted(stated: Stated) -> tuple[int, str]:
    """The line of a block that says it best, and how far down it stands."""
    lines = stated.body.split("\n")
    place = _telling(stated, lines) if len(lines) > 1 else 0
    return place, lines[place].strip()[:500]


def _telling(stated: Stated, lines: list[str]) -> int:
    """An exception's own line, a launcher's exit code, else the first line with a word in it."""
    for fact in stated.facts:
        words: tuple[str, ...] = ()
        if isinstance(fact, ExceptionRaised):
            words = (f"{fact.type}: ", fact.type)
        elif isinstance(fact, LauncherFailure):
            words = ("exitcode", "exit code", "traceback :")
        for word in words:
            # The outermost exception stands last; its cause, where another process raised it, after it.
            for number in range(len(lines) - 1, -1, -1):
                if word in lines[number] and not lines[number].lstrip().startswith(("File ", "raise ")):
                    return number
    return next((number for number, line in enumerate(lines) if any(map(str.isalpha, line))), 0)


def _phrases(tail: Tail, rules: Rules, found: Sequence[RuleMatch]) -> list[RuleMatch]:
    """Lines that no recipe knows and that use the words of the contract."""
    data = tail.data
    covered = sorted((one.offset, one.end) for one in found)
    lines: dict[int, int] = {}
    alike: dict[bytes, tuple[int, int]] = {}
    end = -1
    for match in rules.any_phrase.finditer(data):
        if match.start() < end:
            continue
        start = data.rfind(b"\n", 0, match.start()) + 1
        end = data.find(b"\n", match.end())
        end = len(data) if end < 0 else end
        # Of lines that differ in their numbers only, the first and the last are enough.
        shape = data[start : min(end, start + 512)].translate(None, NUMBERS)
        first, last = alike.get(shape, (start, start))
        if last != first:
            del lines[last]
        alike[shape] = first, start
        lines[start] = end
    starts = sorted(lines)
    if len(starts) > MAX_PHRASES:
        starts = starts[: MAX_PHRASES // 2] + starts[-MAX_PHRASES // 2 :]
    said: list[RuleMatch] = []
    number, counted = 1, 0
    for start in starts:
        number += data.count(b"\n", counted, start)
        counted = start
        before = bisect_right(covered, (start, len(data)))
        if before and start < covered[before - 1][1]:
            continue
        text = data[start : min(lines[start], start + 4096)].decode("utf-8", "replace")
        if (matched := rules.for_phrase(text)) is None:
            continue
        said.append(
            RuleMatch(
                rule=matched[1],
                role="talk",
                offset=start,
                end=lines[start],
                line=number,
                text=text.strip()[:500],
                warned=rules.warned(text),
                complains=bool(rules.complains.search(text)),
                bare=True,
            )
        )
    return said


def _survivals(found: list[RuleMatch], progress: Sequence[Made]) -> None:
    last = _lasting(found, progress)
    steps: dict[int | None, list[int]] = {}
    finished: dict[int | None, int] = {}
    for made in progress:
        if made.finished:
            finished[made.rank] = made.offset
        else:
            steps.setdefault(made.rank, []).append(made.offset)
    # A log in which one rank reports is that rank's, and so is a traceback in it that names nobody.
    whose = {made.rank for made in progress}
    alone = whose.pop() if len(whose) == 1 else None
    late: list[RuleMatch] = []
    for one in found:
        if one.role == "stop":
            continue
        rank = alone if one.rank is None else one.rank
        if one.attempt < last:
            one.survived = "the job was started again after it"
            continue
        after = len(own) - bisect_left(own, one.end) if (own := steps.get(rank)) else 0
        if after >= (1 if one.rank is not None else STEPS_AFTER):
            one.survived = "training went on after it"
            if after == 1 and one.role in ("cause", "error"):
                late.append(one)
        elif finished.get(rank, -1) >= one.end:
            one.survived = "the run says that it finished after it"
        elif one.role == "symptom" and one.offset > finished.get(one.rank, finished.get(None, one.offset)):
            one.survived = "the run says that it had finished before it"
    standing = [one for one in found if not one.survived and one.role in ("cause", "error", "crash", "stop", "symptom")]
    if late and standing and all(one.role == "symptom" and one.offset > late[-1].offset for one in standing):
        # Others lost a peer, and nobody says why: output and errors are joined as they come, a step may come late.
        late[-1].survived = ""
    _outlived(found)


def _lasting(found: Sequence[RuleMatch], progress: Sequence[Made]) -> int:
    """Return the last attempt that made progress, or failed for a reason of its own.

    A start that only hears its peers fail has survived nothing: what ended the attempt before it still stands.
    """
    own = [0, *(one.attempt for one in found if one.role in ("cause", "error", "crash", "stop"))]
    launched = [one for one in found if isinstance(one.fact, LauncherFailure) and one.fact.launcher == "torchelastic"]
    if launched and progress and progress[-1].offset > launched[-1].offset:
        own.append(launched[-1].attempt + 1)
    return max(own)


def _outlived(found: list[RuleMatch]) -> None:
    """An error after which the same process lived long enough to raise another was caught."""
    latest: dict[tuple[int | None, int], int] = {}
    for one in reversed(found):
        if one.role not in ("cause", "error") or one.time is None or one.survived:
            continue
        key = one.rank, one.attempt
        if key in latest and latest[key] - one.time > LATER_NS:
            one.survived = "the same process went on for minutes after it"
        else:
            latest.setdefault(key, one.time)

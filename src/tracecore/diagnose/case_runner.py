"""Run the cases of patterns: feed a timeline to the engine, check the verdicts, compare with the golden file."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tracecore.engine.emission import Emission, standing
from tracecore.engine.engine import Engine
from tracecore.patterns.cases import Case, mismatch, settings_for
from tracecore.patterns.schema import problems, schema_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracecore.patterns.contract import Pattern


class CaseResult(msgspec.Struct):
    """The result of a case. It passed if there are no failures."""

    case: Case
    failures: list[str]
    golden: str
    golden_changed: bool = False

    @property
    def passed(self) -> bool:
        return not self.failures


def run_case(kind: type[Pattern[Any]], case: Case, *, update: bool = False, golden_needed: bool = True) -> CaseResult:
    """Run one case and compare the verdicts with its golden file.

    Args:
        update: write the golden file instead of comparing.
        golden_needed: a verdict without a golden file is a failure.
    """
    pattern = settings_for(kind, case)
    end = max([e.at for e in case.expectations] + [a.at for a in case.arrivals])
    failures: list[str] = []
    live = _live(pattern, case, end, failures)
    offline = standing(Engine([pattern]).replay([arrival.fact for arrival in case.arrivals], until=end))
    golden = render(live)
    if render(offline, revisions=False) != render(live, revisions=False):
        failures.append(f"feeding all facts at once ends differently: {_brief(offline)} instead of {_brief(live)}")
    schema = schema_of(kind)
    for emission in live:
        failures += [f"the schema rejects it: {problem}" for problem in problems(schema, emission.verdict.document())]
    outcome = CaseResult(case, failures, golden)
    if golden_needed or update or case.golden.exists():
        _compare_golden(case, outcome, bool(live), update)
    return outcome


def render(emissions: Sequence[Emission], *, revisions: bool = True) -> str:
    """Return the standing verdicts as the text of a golden file."""
    documents = []
    for emission in sorted(emissions, key=_order):
        document = emission.document()
        if not revisions:
            del document["verdict.revision"]
        promoted = {k: v for k, v in emission.verdict.attributes().items() if not k.startswith("pattern.")}
        documents.append(
            {**document, "promoted": promoted, "suspects": msgspec.to_builtins(emission.verdict.suspects())}
        )
    return msgspec.json.format(msgspec.json.encode(documents), indent=2).decode() + "\n"


def _order(emission: Emission) -> tuple[int, str, str]:
    episode = emission.verdict.episode
    return emission.verdict.time, episode if isinstance(episode, str) else episode.uid, emission.id


def _live(pattern: Pattern[Any], case: Case, end: int, failures: list[str]) -> list[Emission]:
    """Feed each fact when it arrives, and check the expectations of the case; return the standing verdicts."""
    engine = Engine([pattern])
    emissions: list[Emission] = []
    arrivals = [list(group) for _, group in groupby(case.arrivals, key=lambda arrival: arrival.at)]
    expectations = list(case.expectations)
    for instant in sorted({a.at for a in case.arrivals} | {e.at for e in expectations} | {end}):
        if arrivals and arrivals[0][0].at == instant:
            engine.add(arrival.fact for arrival in arrivals.pop(0))
        emissions += engine.close(instant) if instant == end else engine.advance(instant)
        while expectations and expectations[0].at == instant:
            failures += _check(expectations.pop(0), standing(emissions))
    return standing(emissions)


def _check(expectation: Any, found: list[Emission]) -> list[str]:
    label, wanted = expectation.label, expectation.verdicts
    if len(found) != len(wanted):
        return [f"at {label} expected {_count(len(wanted))}, got {_brief(found)}"]
    failures = []
    ordered = sorted(found, key=_order)
    for index, (expected, emission) in enumerate(zip(wanted, ordered, strict=True), start=1):
        document = msgspec.to_builtins({**emission.document(), "promoted": emission.verdict.attributes()})
        if (why := mismatch(expected, document)) is not None:
            failures.append(f"at {label} verdict {index}: {why}")
    return failures


def _compare_golden(case: Case, outcome: CaseResult, has_verdicts: bool, update: bool) -> None:
    path: Path = case.golden
    before = path.read_text(encoding="utf-8") if path.exists() else None
    now = outcome.golden if has_verdicts else None
    if before == now:
        return
    if update and not outcome.failures:
        outcome.golden_changed = True
        if now is None:
            path.unlink()
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(now, encoding="utf-8")
    elif before is None:
        outcome.failures.append(f"no golden {path.name}; look at what it says and write it with --update")
    else:
        outcome.failures.append(f"differs from golden {path.name}:{_difference(before, now or '')}")


def _difference(before: str, now: str) -> str:
    import difflib

    lines = difflib.unified_diff(before.splitlines(), now.splitlines(), "golden", "now", lineterm="", n=1)
    return "".join(f"\n    {line}" for line, _ in zip(lines, range(30), strict=False))


def _count(number: int) -> str:
    return "no verdict" if number == 0 else "one verdict" if number == 1 else f"{number} verdicts"


def _brief(found: Sequence[Emission]) -> str:
    if not found:
        return "no verdict"
    heads = [f"“{emission.verdict.headline()}”" for emission in found[:3]]
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return f"{_count(len(found))}: {', '.join(heads)}{more}"

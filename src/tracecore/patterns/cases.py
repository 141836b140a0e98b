"""Read and run the test cases of patterns, `cases/*.yaml`. A case is a timeline of facts and the expected verdicts.

    case: delta_then_xid
    kind: canonical
    why: the counter rises and the kernel confirms it half a minute later
    facts:
      - t+0s ecc_delta: {node: n1, gpu: "0000:3b:00.0", delta: 1, error_type: uncorrected}
      - t+30s xid: {node: n1, gpu: "0000:3b:00.0", code: 48}
    expect_none_at: [t+29s]
    expect_at:
      t+30s:
        - {confidence: full, gpu.id: "0000:3b:00.0"}

A case runs twice: as a live engine would see it, and all at once. Both must end with the same verdicts, which are
compared with `cases/golden/<case>.json` byte for byte.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import msgspec
import re2

from tracecore.facts.fact import Fact
from tracecore.patterns.config import SECOND, ConfigError, load, parse_duration
from tracecore.patterns.contract import Pattern
from tracecore.signals.record import Source

Kind: TypeAlias = Literal[
    "canonical",  # the problem that the pattern is for
    "guard",  # a condition under which it gives no verdict
    "edge",  # just inside a window, or just outside
    "scope",  # the same facts of another pod, node, GPU, job
    "order",  # facts arrive in another order
    "storm",  # very many facts of one type
    "missing",  # an optional field is absent
    "look_alike",  # facts of a similar pattern
    "truncated",  # the input ends early
    "priority",  # two explanations, one wins
    "partial",  # a layer is missing and the verdict says so
    "clearing",  # the verdict does not hold any more
    "setting",  # another threshold
    "real",  # taken from a recorded incident
]
KINDS: tuple[str, ...] = get_args(Kind)

#: The time `t`, unless a case sets `start`.
START = 1_767_225_600 * SECOND
MAX_REPEAT = 100_000
#: Maximum size of a file of cases. Storms need no large file, because a storm is one line.
MAX_BYTES = 1 << 20

_ENTRY = re2.compile(
    r"^(?P<at>t(?:[+-][0-9][0-9a-z.]*)?) +(?P<name>[A-Za-z][A-Za-z0-9_]*)"
    r"(?: +x(?P<times>[0-9]{1,6})(?: +every +(?P<every>[0-9][0-9a-z.]*))?)?"
    r"(?: +arrives +(?P<arrives>t(?:[+-][0-9][0-9a-z.]*)?))?$"
)
#: A value `{i+5}` counts up with the repeats of a fact: 5, 6, 7 …
_COUNTED = re2.compile(r"^\{i\+([0-9]{1,9})\}$")


class CaseError(ValueError):
    """A case that cannot be read. The text names the place as `file:line`."""

    def __init__(self, path: Path, line: int, message: str) -> None:
        super().__init__(f"{path}:{line}: {message}")
        self.path, self.line, self.message = path, line, message


class TimedFact(msgspec.Struct, frozen=True):
    """A fact and the time when the engine receives it."""

    at: int
    fact: Fact


class ExpectedVerdicts(msgspec.Struct, frozen=True):
    """The verdicts expected at this instant, each as a part of its document. Empty: no verdict is expected."""

    at: int
    label: str
    verdicts: tuple[Mapping[str, Any], ...]


class Case(msgspec.Struct, frozen=True):
    name: str
    kind: str
    why: str
    path: Path
    line: int
    settings: Mapping[str, Any]
    arrivals: tuple[TimedFact, ...]
    expectations: tuple[ExpectedVerdicts, ...]
    pattern: str = ""

    #: The allowed keys of a case.
    KEYS: ClassVar[tuple[str, ...]] = (
        "case",
        "pattern",
        "kind",
        "why",
        "start",
        "config",
        "order",
        "facts",
        "signals",
        "expect_at",
        "expect_none_at",
    )

    @property
    def golden(self) -> Path:
        return self.path.parent / "golden" / f"{self.name}.json"

    @property
    def positive(self) -> bool:
        """Return whether a verdict is expected at the end."""
        return bool(self.expectations and self.expectations[-1].verdicts)


def folder(kind: type[Pattern[Any]]) -> Path:
    """Return the folder of a pattern."""
    import inspect

    return Path(inspect.getfile(kind)).parent


def case_files(kind: type[Pattern[Any]]) -> list[Path]:
    """Return the case files of a pattern, sorted."""
    return sorted(p for p in (folder(kind) / "cases").glob("*.yaml") if p.name != "falsifiers.yaml")


def cases_of(kind: type[Pattern[Any]]) -> list[Case]:
    """Return all cases of a pattern."""
    cases = [case for path in case_files(kind) for case in read_cases(path, kind.needs)]
    names: dict[str, Case] = {}
    for case in cases:
        if case.name in names:
            raise CaseError(case.path, case.line, f"case `{case.name}` is in {names[case.name].path.name} already")
        names[case.name] = case
    return cases


def read_cases(path: Path, needs: Sequence[type[Fact]] = ()) -> Iterator[Case]:
    """Yield the cases of one file; each YAML document is a case.

    Args:
        needs: fact types that may be named in addition to those of `facts.catalog`.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    yaml = YAML(typ="rt")
    if path.stat().st_size > MAX_BYTES:
        raise CaseError(path, 1, f"larger than {MAX_BYTES >> 20} MiB; write a storm as `t xid x500 every 10ms`")
    try:
        documents = list(yaml.load_all(path.read_text(encoding="utf-8")))
    except MarkedYAMLError as error:
        mark = error.problem_mark
        raise CaseError(path, mark.line + 1 if mark else 1, str(error.problem)) from None
    except (ValueError, YAMLError):
        raise CaseError(path, 1, "this is no YAML text") from None
    except AttributeError:
        # ruamel.yaml fails like this if a map is merged into itself.
        raise CaseError(path, 1, "a map contains itself") from None
    except RecursionError:
        raise CaseError(path, 1, "nested too deeply") from None
    for document in documents:
        if document is not None:
            yield _Reader(path, needs).case(document)


def moment(text: object, start: int) -> int:
    """Return `t`, `t+30s`, `t-1m30s` or `t+5m1ns` as nanoseconds since the epoch."""
    if isinstance(text, str) and text == "t":
        return start
    if not isinstance(text, str) or text[:2] not in ("t+", "t-"):
        raise ValueError(f"`{text}` is not a time; write it like t+30s, t-5m or t+5m1ns")
    offset = parse_duration(text[2:])
    return start + offset if text[1] == "+" else start - offset


class _Reader:
    """Turns one YAML document into a case, with line numbers for errors."""

    def __init__(self, path: Path, needs: Sequence[type[Fact]]) -> None:
        self.path = path
        self.needs = needs
        self.start = START
        self.line = 1
        self.uids: dict[str, int] = {}

    def fail(self, message: str, node: Any = None, key: Any = None) -> CaseError:
        line = self.line
        position = getattr(node, "lc", None)
        if position is not None and position.line is not None:
            line = position.line + 1
            if key is not None and position.data and key in position.data:
                line = position.data[key][0] + 1
        return CaseError(self.path, line, message)

    def case(self, document: Any) -> Case:
        if not isinstance(document, Mapping):
            raise self.fail("a case is a mapping with `case`, `kind`, `facts` and what to expect", document)
        position = getattr(document, "lc", None)
        self.line = position.line + 1 if position is not None else 1
        for key in document:
            if key not in Case.KEYS:
                raise self.fail(f"`{key}` means nothing in a case; it has {', '.join(Case.KEYS)}", document, key)
        name, kind, why = (document.get(key) for key in ("case", "kind", "why"))
        if not isinstance(name, str) or not re2.fullmatch(r"[a-z0-9][a-z0-9_]*", name):
            raise self.fail("`case` is a name of lower-case letters, digits and underscores", document, "case")
        if kind not in KINDS:
            raise self.fail(f"`kind: {kind}` is none of {', '.join(KINDS)}", document, "kind")
        if not isinstance(why, str) or not why.strip():
            raise self.fail("`why` says in a line what the case is about", document, "why")
        if "start" in document:
            self.start = self._start(document)
        arrivals = self._facts(document) + self._signals(document)
        arrivals.sort(key=lambda arrival: arrival.at)
        if document.get("order") == "reversed":
            last = max((a.at for a in arrivals), default=self.start)
            arrivals = [TimedFact(last + i, a.fact) for i, a in enumerate(reversed(arrivals))]
        elif "order" in document:
            raise self.fail("`order` can only be `reversed`", document, "order")
        expectations = self._expectations(document)
        if not expectations:
            raise self.fail("a case expects something: `expect_at` or `expect_none_at`", document)
        settings = plain(document.get("config") or {})
        pattern = str(document.get("pattern") or "")
        return Case(name, kind, why, self.path, self.line, settings, tuple(arrivals), tuple(expectations), pattern)

    def _start(self, document: Any) -> int:
        import datetime

        value = document["start"]
        if isinstance(value, str):
            try:
                value = datetime.datetime.fromisoformat(value)
            except ValueError:
                raise self.fail("`start` is a time such as 2026-01-01T00:00:00Z", document, "start") from None
        if not isinstance(value, datetime.datetime):
            raise self.fail("`start` is a time such as 2026-01-01T00:00:00Z", document, "start")
        if value.tzinfo is None:
            value = value.replace(tzinfo=datetime.UTC)
        return int(value.timestamp()) * SECOND + value.microsecond * 1000

    def _facts(self, document: Any) -> list[TimedFact]:
        entries = document.get("facts") or []
        if not isinstance(entries, Sequence) or isinstance(entries, str):
            raise self.fail("`facts` is a list", document, "facts")
        arrivals: list[TimedFact] = []
        for index, entry in enumerate(entries):
            if not isinstance(entry, Mapping) or len(entry) != 1:
                raise self.fail("a fact is one line, `- t+30s xid: {…}`", entries, index)
            ((label, fields),) = entry.items()
            found = _ENTRY.match(str(label))
            if found is None:
                raise self.fail(f"`{label}`: write `t+30s xid`, `t xid x500 every 10ms`", entries, index)
            if fields is not None and not isinstance(fields, Mapping):
                raise self.fail(f"`{label}` wants fields, `{{node: n1}}`", entries, index)
            try:
                arrivals += self._repeat(found.groupdict(), plain(fields or {}))
            except (ValueError, msgspec.ValidationError) as error:
                raise self.fail(f"`{label}`: {error}", entries, index) from None
        return arrivals

    def _repeat(self, entry: Mapping[str, str | None], fields: dict[str, Any]) -> Iterator[TimedFact]:
        times = int(entry["times"] or 1)
        if times > MAX_REPEAT:
            raise ValueError(f"at most {MAX_REPEAT} times")
        every = parse_duration(entry["every"]) if entry["every"] else 0
        begin = moment(entry["at"], self.start)
        name = str(entry["name"])
        kind = self._type(name)
        for number in range(times):
            time = begin + number * every
            values = {key: self._value(kind, key, value, number) for key, value in fields.items()}
            uid = str(values.pop("uid", f"{name}@{entry['at']}"))
            seen = self.uids[uid] = self.uids.get(uid, 0) + 1
            if seen > 1:
                uid = f"{uid}#{seen}"
            fact = build(kind, values, time, uid)
            arrives = moment(entry["arrives"], self.start) if entry["arrives"] else time
            yield TimedFact(max(arrives, time), fact)

    def _type(self, name: str) -> type[Fact]:
        from tracecore.facts.catalog import snake, type_named

        for kind in self.needs:
            if name in (kind.__name__, snake(kind.__name__)):
                return kind
        return type_named(name)

    def _value(self, kind: type[Fact], field: str, value: Any, number: int) -> Any:
        from tracecore.facts.catalog import TIME_FIELDS

        if isinstance(value, str):
            if (counted := _COUNTED.match(value)) is not None:
                return number + int(counted.group(1))
            value = value.replace("{i}", str(number))
            if field in TIME_FIELDS and value.startswith("t"):
                return moment(value, self.start)
        return value

    def _signals(self, document: Any) -> list[TimedFact]:
        entries = document.get("signals")
        if not entries:
            return []
        from tracecore.patterns.signals import facts_of

        try:
            facts = facts_of(plain(entries), lambda text: moment(text, self.start))
        except ValueError as error:
            raise self.fail(str(error), document, "signals") from None
        return [TimedFact(fact.time, fact) for fact in facts]

    def _expectations(self, document: Any) -> list[ExpectedVerdicts]:
        expectations: list[ExpectedVerdicts] = []
        expect_at = document.get("expect_at") or {}
        if not isinstance(expect_at, Mapping):
            raise self.fail(
                "`expect_at` is a mapping from a time to the verdicts that stand then", document, "expect_at"
            )
        for label, verdicts in expect_at.items():
            if not isinstance(verdicts, Sequence) or not verdicts or not all(isinstance(v, Mapping) for v in verdicts):
                raise self.fail(f"`{label}` wants a list of verdicts, each fields of its document", expect_at, label)
            expectations.append(self._expectation(expect_at, label, tuple(plain(v) for v in verdicts)))
        silent = document.get("expect_none_at") or []
        if not isinstance(silent, Sequence) or isinstance(silent, str):
            raise self.fail("`expect_none_at` is a list of times, `[t+29s]`", document, "expect_none_at")
        for index, label in enumerate(silent):
            expectations.append(self._expectation(silent, label, (), index))
        return sorted(expectations, key=lambda expectation: expectation.at)

    def _expectation(
        self, node: Any, label: Any, verdicts: tuple[Mapping[str, Any], ...], place: int | None = None
    ) -> ExpectedVerdicts:
        try:
            return ExpectedVerdicts(moment(label, self.start), str(label), verdicts)
        except ValueError as error:
            raise self.fail(str(error), node, label if place is None else place) from None


def build(kind: type[Fact], fields: Mapping[str, Any], time: int, uid: str) -> Fact:
    """Return a fact of this type from plain fields, with strict checks of types."""
    known = [name for name in kind.__struct_fields__ if name not in ("time", "source")]
    for name in fields:
        if name not in known:
            raise ValueError(f"{kind.__name__} has no field `{name}`; it has {', '.join(known)}")
    config = kind.__struct_config__
    tagged = {config.tag_field: config.tag} if config.tag_field else {}
    return msgspec.convert({**fields, **tagged, "time": time, "source": Source(path=uid, ident=uid)}, kind)


def plain(value: Any) -> Any:
    """Return the same value without the types of the YAML reader."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bool) or value is None:
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return str(value)


def settings_for(kind: type[Pattern[Any]], case: Case) -> Pattern[Any]:
    """Return the pattern with the settings of this case."""
    try:
        return kind(load(kind.Config, case.settings, "config"))
    except ConfigError as error:
        raise CaseError(case.path, case.line, str(error)) from None


def mismatch(expected: Any, actual: Any, where: str = "") -> str | None:
    """Return why `actual` does not match `expected`, or None if it does. Mappings in `actual` may have more keys."""
    if isinstance(expected, Mapping):
        if not isinstance(actual, Mapping):
            return f"{where or 'it'} is {actual!r}, not a mapping"
        for key, value in expected.items():
            at = f"{where}.{key}" if where else key
            if key not in actual:
                return f"{at} is absent"
            if (why := mismatch(value, actual[key], at)) is not None:
                return why
        return None
    if isinstance(expected, list):
        if not isinstance(actual, list) or len(expected) != len(actual):
            return f"{where} is {actual!r}, expected {expected!r}"
        for index, (one, other) in enumerate(zip(expected, actual, strict=True)):
            if (why := mismatch(one, other, f"{where}[{index}]")) is not None:
                return why
        return None
    if isinstance(expected, float) and isinstance(actual, int | float) and not isinstance(actual, bool):
        return None if math.isclose(expected, actual) else f"{where} is {actual!r}, expected {expected!r}"
    return (
        None
        if expected == actual and type(expected) is type(actual)
        else f"{where} is {actual!r}, expected {expected!r}"
    )

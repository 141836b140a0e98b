"""The rules of `classes.yaml`: what a statement of a log, a verdict, a reason or an exit status means."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast, get_args

import msgspec
import re2

from tracecore.actions import codes
from tracecore.actions.failure import CLASSES, FailureClass
from tracecore.actions.shipped import load
from tracecore.facts import catalog, xid_catalog
from tracecore.facts.fact import Fact
from tracecore.facts.gpu import Xid
from tracecore.facts.process import ExceptionRaised
from tracecore.facts.storage import StorageError
from tracecore.positioned_yaml import At, FileError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tracecore.actions.tail import Stated

#: cause: explains a failure. error: the program's own. crash: died without a word. symptom: follows from another's
#: failure. talk: a line that speaks of a failure and may be chatter. ending: only that it ended. stop: asked for.
#: chatter: never decides.
Role: TypeAlias = Literal["cause", "error", "crash", "symptom", "talk", "ending", "stop", "chatter"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)
STOPS: Final = ("preempted", "time_limit", "cancelled", "interrupt")
#: Bytes that the automaton of all phrases together may take.
MEMORY: Final = 64 << 20
#: What a rule tells where it does not tell why. who: which process crashed. how: of which signal. end: only that
#: another one failed. start: the program never ran. least: the last line of a log, of which anything else says more.
TELLS: Final = ("who", "how", "end", "start", "least")

#: Fields of one line that stand at zero.
_FIELDS: Final = 32
_ROOT = (
    "classes",
    "chatter",
    "warns",
    "errs",
    "complains",
    "complaints",
    "quoted",
    "zeros",
    "harmless",
    "ends",
    "good_end",
    "exit_statuses",
    "reasons",
    "rules",
)
_KINDS: Final = ("fact", "stamped", "phrase", "verdict", *codes.KINDS)
_RULE = ("name", "class", "role", "when", "suggestion", "ended", "stop", "tells", "explains_kill")


class Test(msgspec.Struct, frozen=True):
    """Test of one field: one of some values, none of some, matching an expression, or anything but nothing."""

    values: frozenset[Any] | None = None
    others: frozenset[Any] | None = None
    match: Any = None

    def __call__(self, value: object) -> bool:
        if value is None:
            return False
        if self.values is not None:
            return value in self.values
        if self.others is not None:
            return value not in self.others
        return self.match is None or bool(isinstance(value, str) and self.match.search(value))


class Condition(msgspec.Struct, frozen=True):
    """One way in which a rule holds.

    Args:
        kind: fact, stamped, phrase or verdict; codes are phrases too.
        subject: the fact's type, the attribute, the expression, the pattern.
        tests: fields of the fact or of the verdict's document; `text` is the whole line or block.
        fact: the fact's type.
        phrase: the compiled expression.
    """

    kind: str
    subject: str
    tests: tuple[tuple[str, Test], ...] = ()
    fact: type[Fact] | None = None
    phrase: Any = None


class ClassRule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule.

    Args:
        failure_class: what it means.
        ended: what it means where an exit status says that the process did end.
        stop: the stop was asked for, and why: then it is no failure.
        tells: one of TELLS; None where it tells why.
        explains_kill: says who sent a SIGKILL, and why.
        line: where it stands in its file.
    """

    name: str
    failure_class: FailureClass
    role: Role
    suggestion: str
    when: tuple[Condition, ...] = ()
    ended: FailureClass | None = None
    stop: str | None = None
    tells: str | None = None
    explains_kill: bool = False
    line: int = 0


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """All of them, indexed by what they ask for."""

    suggestions: dict[FailureClass, str]
    chatter: tuple[tuple[str, Any], ...]
    warns: Any
    errs: Any
    complains: Any
    complaints: Any
    quoted: Any
    zeros: Any
    harmless: Any
    ends: Any
    good_end: Any
    exit_statuses: dict[str, str]
    reasons: dict[str, str | None]
    rules: tuple[ClassRule, ...]
    by_name: dict[str, ClassRule]
    by_fact: dict[type[Fact], tuple[tuple[int, ClassRule, Condition], ...]]
    by_attribute: dict[str, tuple[tuple[int, ClassRule, Condition], ...]]
    by_pattern: dict[str, tuple[tuple[int, ClassRule, Condition], ...]]
    phrases: tuple[tuple[int, ClassRule, Condition], ...]
    any_phrase: Any

    def for_stated(self, stated: Stated) -> tuple[ClassRule, Fact | None] | None:
        """The rule that speaks for a line or block: the first in the file's order."""
        best: tuple[int, ClassRule, Fact | None] | None = None
        for fact in stated.facts:
            for order, rule, condition in self._of_fact(fact):
                if best is not None and order >= best[0]:
                    break
                if all(test(_field(fact, name, stated)) for name, test in condition.tests):
                    best = order, rule, fact
                    break
            if (said := _said(fact, stated)) and (found := self.for_phrase(said, own=True)) is not None:
                order, rule = found
                if best is None or order < best[0]:
                    best = order, rule, fact
        for name in stated.attributes.keys() & self.by_attribute.keys():
            for order, rule, condition in self.by_attribute[name]:
                if (best is None or order < best[0]) and all(
                    test(stated.attributes[name]) for _, test in condition.tests
                ):
                    best = order, rule, None
        return None if best is None else best[1:]

    def for_phrase(self, text: str, *, own: bool = False) -> tuple[int, ClassRule] | None:
        """The first rule one of whose phrases stands in a line that is not chatter.

        Args:
            own: the text is an exception's own message, so only settings and advice are chatter.

        Of advice ("CUDA is out of memory. Try to …") only its sentence is: what stands before it is the complaint.
        """
        if not self.any_phrase.search(text.encode("utf-8", "replace")):
            return None
        text = text if own else self._counted(text)
        for name, expression in self.chatter:
            if (own and name not in ("settings", "advice")) or (found := expression.search(text)) is None:
                continue
            text = text[: text.rfind(". ", 0, found.start()) + 1] if name == "advice" else ""
        for order, rule, condition in self.phrases:
            if condition.phrase.search(text):
                return order, rule
        return None

    def complaint(self, text: str) -> bool:
        """Return whether a line has a form in which programs say that they failed, and is not chatter.

        Options of a command that it quotes say nothing, nor does the sentence in which a setting stands.
        """
        if (options := self.quoted.search(text)) is not None:
            text = text[: options.start()]
        if self.warned(text) or self.errs.search(text) or not self.complaints.search(text):
            return False
        text = self._counted(text)
        for name, expression in self.chatter:
            if name == "advice" or (found := expression.search(text)) is None:
                continue
            if name != "settings":
                return False
            text = text[: text.rfind(". ", 0, found.start()) + 1]
        return bool(self.complaints.search(text))

    def _counted(self, text: str) -> str:
        """Return the text without the counters in it that stand at zero, and the fields that say no."""
        # A field that follows another one is left over, since the two share what stands between them.
        for _ in range(_FIELDS):
            before, text = text, self.zeros.sub(r"\1\2", text)
            if text == before:
                break
        return text

    def overcome(self, text: str) -> bool:
        """Return whether some lines say that a complaint is harmless, or that the operation is tried again."""
        return bool(self.harmless.search(text))

    def is_ordinary(self, text: str) -> bool:
        """Return whether a line is one of a program that goes on."""
        return bool(text) and not self.ends.search(text) and not self.complains.search(text)

    def ends_well(self, text: str) -> bool:
        """Return whether the last line of a log says that the program ended well."""
        found = self.good_end.search(text)
        return found is not None and not found.group(1) and not self.complaint(text)

    def for_verdict(self, pattern: str, document: Mapping[str, Any]) -> ClassRule | None:
        """The rule for a verdict: its pattern, and fields of its document."""
        for _, rule, condition in self.by_pattern.get(pattern, ()):
            if all(test(document.get(name)) for name, test in condition.tests):
                return rule
        return None

    def for_exit(self, exit_code: int | None, signal: str | None) -> ClassRule:
        """The rule for an exit status alone."""
        for key in (signal, None if exit_code is None else str(exit_code)):
            if key is not None and key in self.exit_statuses:
                return self.by_name[self.exit_statuses[key]]
        return self.by_name[self.exit_statuses["default"]]

    def for_reason(self, reason: str, exit_code: int | None) -> ClassRule | None:
        """The rule for what Kubernetes or Slurm calls the end; None where that says nothing about why.

        `CANCELLED by 1000`, `CANCELLED+` and `cancelled` are one.
        """
        words = reason.strip().split()
        name = self.reasons.get(words[0].rstrip("+").casefold() if words else "")
        if name is None:
            return None
        # A container that cannot run its command is not the node's fault, and the exit code knows.
        exact = self.exit_statuses.get(str(exit_code)) if exit_code is not None else None
        return self.by_name[exact if exact is not None else name]

    def knows_reason(self, reason: str) -> bool:
        """Return whether the reason is one of the file's, even one that says nothing."""
        words = reason.strip().split()
        return bool(words) and words[0].rstrip("+").casefold() in self.reasons

    def warned(self, body: str) -> bool:
        """The line only warns."""
        first = body.partition("\n")[0][:400]
        return bool(self.warns.search(first)) and not self.errs.search(first)

    def _of_fact(self, fact: Fact) -> tuple[tuple[int, ClassRule, Condition], ...]:
        # An operation that was retried has not failed.
        return () if getattr(fact, "retried", False) else self.by_fact.get(type(fact), ())


def _field(fact: Fact, name: str, stated: Stated) -> object:
    if name == "text":
        return stated.body
    if name == "fault" and isinstance(fact, Xid):
        entry = xid_catalog.entry(fact.code)
        return entry.fault if entry is not None else "gpu"
    return getattr(fact, name, None)


def _said(fact: Fact, stated: Stated) -> str:
    """The words in which a failure was told: an exception's message, or the line of a storage error."""
    if not isinstance(fact, ExceptionRaised):
        return stated.body if isinstance(fact, StorageError) and "\n" not in stated.body and not fact.retried else ""
    text = f"{fact.type}: {fact.message or ''}"
    return f"{text}\n{fact.root_type}: {fact.root_message or ''}" if fact.root_type else text


def path() -> Path:
    """The rules that ship with tracecore."""
    return Path(__file__).parent / "classes.yaml"


@cache
def standard() -> Rules:
    """The rules that ship with tracecore, read once."""
    return read(path())


def read(file: Path) -> Rules:
    """Rules from a file.

    Raises:
        FileError: with file, line and column.
    """
    top = load(file).mapping(_ROOT, needs=_ROOT)
    suggestions = top["classes"].mapping(CLASSES, needs=CLASSES)
    rules: list[ClassRule] = []
    names: dict[str, ClassRule] = {}
    for node in top["rules"].items():
        rule = _rule(node)
        if rule.name in names:
            raise node.error(f"a rule {rule.name!r} stands at line {names[rule.name].line} already")
        names[rule.name] = rule
        rules.append(rule)
    exits = top["exit_statuses"].mapping(needs=("default",))
    reasons = top["reasons"].mapping()
    flat = [(order, rule, condition) for order, rule in enumerate(rules) for condition in rule.when]
    phrases = tuple(entry for entry in flat if entry[2].kind == "phrase")
    union = "|".join(f"(?:{condition.subject})" for _, _, condition in phrases)
    return Rules(
        suggestions={cast("FailureClass", name): node.text() for name, node in suggestions.items()},
        chatter=tuple((name, re2.compile(node.regex())) for name, node in top["chatter"].mapping().items()),
        warns=re2.compile(top["warns"].regex()),
        errs=re2.compile(top["errs"].regex()),
        complains=re2.compile(top["complains"].regex()),
        complaints=re2.compile("|".join(f"(?:{node.regex()})" for node in top["complaints"].mapping().values())),
        quoted=re2.compile(top["quoted"].regex()),
        zeros=re2.compile(top["zeros"].regex()),
        harmless=re2.compile(top["harmless"].regex()),
        ends=re2.compile(top["ends"].regex()),
        good_end=re2.compile(top["good_end"].regex()),
        exit_statuses={name: node.one_of(names) for name, node in exits.items()},
        reasons={
            name.casefold(): None if node.scalar() is None else node.one_of(names) for name, node in reasons.items()
        },
        rules=tuple(rules),
        by_name=names,
        by_fact={kind: tuple(_about(flat, kind.__name__, "fact")) for kind in catalog.TYPES},
        by_attribute={name: tuple(_about(flat, name, "stamped")) for name in _subjects(flat, "stamped")},
        by_pattern={name: tuple(_about(flat, name, "verdict")) for name in _subjects(flat, "verdict")},
        phrases=phrases,
        any_phrase=_of_bytes(union),
    )


def _of_bytes(expression: str) -> Any:
    """Compile an expression for bytes, in which `[^\\n]{0,80}` is a tenth as long as for characters."""
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture = True
    options.max_mem = MEMORY
    return re2.compile(expression.encode(), options=options)


def _about(
    flat: list[tuple[int, ClassRule, Condition]], subject: str, kind: str
) -> Iterator[tuple[int, ClassRule, Condition]]:
    return (entry for entry in flat if entry[2].kind == kind and entry[2].subject == subject)


def _subjects(flat: list[tuple[int, ClassRule, Condition]], kind: str) -> dict[str, None]:
    return dict.fromkeys(condition.subject for _, _, condition in flat if condition.kind == kind)


def _rule(node: At) -> ClassRule:
    fields = node.mapping(_RULE, needs=("name", "class", "role", "when", "suggestion"))
    return ClassRule(
        name=fields["name"].text(),
        failure_class=cast("FailureClass", fields["class"].one_of(CLASSES)),
        role=cast("Role", fields["role"].one_of(ROLES)),
        suggestion=fields["suggestion"].text(),
        when=tuple(_condition(item) for item in fields["when"].items()),
        ended=cast("FailureClass", fields["ended"].one_of(CLASSES)) if "ended" in fields else None,
        stop=fields["stop"].one_of(STOPS) if "stop" in fields else None,
        tells=fields["tells"].one_of(TELLS) if "tells" in fields else None,
        explains_kill=fields["explains_kill"].flag() if "explains_kill" in fields else False,
        line=node.line,
    )


def _condition(node: At) -> Condition:
    fields = node.mapping()
    kinds = [name for name in _KINDS if name in fields]
    if len(kinds) != 1:
        raise node.error(f"a condition has exactly one of {', '.join(_KINDS[:-1])} and {_KINDS[-1]}")
    kind = kinds[0]
    subject = fields.pop(kind)
    if (expression := codes.KINDS.get(kind)) is not None:
        if fields:
            raise next(iter(fields.values())).error("a code has no fields")
        try:
            phrase = expression(str(item.scalar()) for item in subject.items())
        except ValueError as error:
            raise subject.error(str(error)) from None
        return Condition("phrase", phrase, phrase=re2.compile(phrase))
    if kind == "phrase":
        if fields:
            raise next(iter(fields.values())).error("a phrase has no fields")
        return Condition(kind, subject.regex(), phrase=re2.compile(subject.regex()))
    if kind == "stamped" and fields.keys() - {"value"}:
        raise node.error("a stamped attribute has nothing but `value`")
    fact: type[Fact] | None = None
    if kind == "fact":
        try:
            fact = catalog.type_named(subject.text())
        except catalog.FactError as error:
            raise subject.error(str(error)) from None
        known = {*catalog.fields_of(fact), "text", *(("fault",) if fact is Xid else ())}
        if unknown := [name for name in fields if name not in known]:
            raise fields[unknown[0]].error(f"{fact.__name__} has no field {unknown[0]!r}")
    tests = tuple((name, _test(value)) for name, value in fields.items())
    return Condition(kind, fact.__name__ if fact else subject.text(), tests, fact)


def _test(node: At) -> Test:
    if node.is_list():
        return Test(values=frozenset(item.scalar() for item in node.items()))
    if not node.is_mapping():
        node.one_of(("any",))
        return Test()
    fields = node.mapping(("match", "not"))
    if len(fields) != 1:
        raise node.error("either `match` or `not`")
    if "match" in fields:
        return Test(match=re2.compile(fields["match"].regex()))
    return Test(others=frozenset(item.scalar() for item in fields["not"].items()))


__all__ = ["CLASSES", "ClassRule", "FileError", "Rules", "path", "read", "standard"]

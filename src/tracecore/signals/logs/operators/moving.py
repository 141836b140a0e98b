"""Operators that put fields elsewhere, add and remove them, and choose where entries go."""

from __future__ import annotations

import copy
import random
from typing import Any

from tracecore.signals.logs.operators.base import Failures, Operator
from tracecore.signals.logs.operators.entry import MISSING, Entry, OperatorError
from tracecore.signals.logs.operators.expression import Expression, ExpressionError
from tracecore.signals.logs.operators.options import Options


class Move(Operator):
    """`move`: takes a field from one place to another."""

    def __init__(self, options: Options, failures: Failures) -> None:
        super().__init__(options, failures)
        self._from = options.needed_field("from")
        self._to = options.needed_field("to")

    def transform(self, entry: Entry, now: int) -> None:
        value = self._from.delete(entry)
        if value is MISSING:
            raise OperatorError("move: there is no such field")
        self._to.set(entry, value)


class Add(Operator):
    """`add`: sets a field to a value, or to that of an expression."""

    def __init__(self, options: Options, failures: Failures) -> None:
        super().__init__(options, failures)
        self._field = options.needed_field("field")
        self._value = options.value("value", options.raw("value"))

    def transform(self, entry: Entry, now: int) -> None:
        if self._value is None:
            raise OperatorError("add: there is no value")
        self._field.set(entry, valued(self._value, entry))


class Remove(Operator):
    """`remove`: takes a field away; `attributes` or `resource` for all of them."""

    def __init__(self, options: Options, failures: Failures) -> None:
        super().__init__(options, failures)
        self._field = options.needed_field("field", root=True)

    def transform(self, entry: Entry, now: int) -> None:
        if self._field.delete(entry) is MISSING:
            raise OperatorError("remove: there is no such field")


class FilterOperator(Operator):
    """`filter`: drops entries for which an expression is true, or a part of them."""

    def __init__(self, options: Options, failures: Failures) -> None:
        super().__init__(options, failures)
        self._expression = options.condition("expr")
        if self._expression is None and not options.has("expr"):
            options.wrong("expr", '"expr" is missing')
        ratio = options.raw("drop_ratio", 1)
        if not isinstance(ratio, int | float) or not 0 <= ratio <= 1:
            options.wrong("drop_ratio", "expected a number from 0 to 1")
            ratio = 1
        self._ratio = int(ratio * 1000)

    def process(self, entries: list[Entry], now: int) -> None:
        kept: list[Entry] = []
        for entry in entries:
            try:
                drop = self._expression is not None and self._expression(entry)
            except ExpressionError as error:
                self.count_failure(error)
                self.failures.entries_dropped += 1
                continue
            if not drop or (self._ratio < 1000 and random.randrange(1000) >= self._ratio):
                kept.append(entry)
        self.write(kept, now)


class Router(Operator):
    """`router`: the first route whose expression is true takes the entry; without one it is dropped."""

    def __init__(self, options: Options, failures: Failures) -> None:
        super().__init__(options, failures)
        routes = options.raw("routes", [])
        default = options.raw("default")
        self._routes: list[tuple[Expression | None, dict[str, Any], list[str]]] = []
        self._places: list[list[Operator]] = []
        if not isinstance(routes, list) or not routes:
            options.wrong("routes", '"routes" is missing')
            routes = []
        for number, route in enumerate(routes):
            inner = options.part(route if isinstance(route, dict) else {}, "routes", number)
            condition = inner.condition("expr")
            if condition is None and not inner.has("expr"):
                inner.wrong("expr", '"expr" is missing')
            self._routes.append((condition, _attributes(inner), _ids(inner, "output")))
            inner.finish()
        if default is not None:
            self._routes.append((Expression("true"), {}, [default] if isinstance(default, str) else list(default)))

    def outputs(self) -> list[str]:
        return [one for _, _, output in self._routes for one in output]

    def connect(self, known: dict[str, Operator], following: Operator) -> list[str]:
        self._places = [[known[one] for one in output if one in known] for _, _, output in self._routes]
        return [one for one in self.outputs() if one not in known]

    def process(self, entries: list[Entry], now: int) -> None:
        routed: dict[int, list[Entry]] = {}
        for entry in entries:
            number = self._route(entry)
            if number is None:
                self.failures.entries_dropped += 1
            else:
                routed.setdefault(number, []).append(entry)
        for number, chosen in routed.items():
            places = self._places[number]
            for place in places[1:]:
                place.process([entry.copied() for entry in chosen], now)
            if places:
                places[0].process(chosen, now)

    def _route(self, entry: Entry) -> int | None:
        for number, (condition, attributes, _) in enumerate(self._routes):
            try:
                if condition is not None and condition(entry):
                    entry.attributes.update((name, valued(value, entry)) for name, value in attributes.items())
                    return number
            except ExpressionError as error:
                self.count_failure(error)
        return None


def valued(value: Any, entry: Entry) -> Any:
    """A value of a configuration for an entry, which may change it."""
    return value(entry) if isinstance(value, Expression) else copy.deepcopy(value)


def _attributes(options: Options) -> dict[str, Any]:
    """Attributes that a route adds: texts, or expressions."""
    found = options.raw("attributes", {})
    if not isinstance(found, dict):
        options.wrong("attributes", "expected attributes by name")
        return {}
    return {str(name): options.value("attributes", value) for name, value in found.items()}


def _ids(options: Options, name: str) -> list[str]:
    found = options.raw(name)
    if isinstance(found, str):
        return [found]
    if isinstance(found, list) and all(isinstance(one, str) for one in found):
        return found
    options.wrong(name, "expected the id of an operator, or a list of them")
    return []

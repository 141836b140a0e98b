"""Binding of arguments, constants, and what is refused before there is a record."""

from __future__ import annotations

from typing import Any

import pytest

from tracecore.ottl import transform
from tracecore.ottl.compile import compile_condition, compile_statement, compile_value_expression, functions_of
from tracecore.ottl.context import Context
from tracecore.ottl.errors import OttlCompileError, OttlError, OttlRuntimeError
from tracecore.ottl.signature import (
    MISSING,
    BoolLikeGetter,
    ByteSliceLikeGetter,
    DurationGetter,
    FloatLikeGetter,
    Function,
    FunctionGetter,
    Getter,
    IntGetter,
    IntLikeGetter,
    PMapGetSetter,
    PMapGetter,
    RawGetter,
    Slice,
    StringGetter,
    StringLikeGetter,
    TimeGetter,
    constant_value,
    converter,
    declared,
    editor,
    value_converter,
)
from tracecore.ottl.values import Duration, Time, Value

calls: list[str] = []


@converter("Join")
def join(first: StringGetter, second: StringGetter, separator: StringGetter | None = None) -> RawGetter:
    calls.append("made")
    between = separator or (lambda ctx: "-")

    def run(ctx: Context) -> Value:
        calls.append("run")
        return first(ctx) + between(ctx) + second(ctx)

    return run


@converter("Impure", pure=False)
def impure(value: Getter) -> RawGetter:
    return lambda ctx: value(ctx)


@converter("Literals")
def literals(text: str, number: int, real: float, flag: bool, raw: bytes, words: list[str]) -> RawGetter:
    return lambda ctx: [text, number, real, flag, raw, words]


@converter("Apply")
def apply(value: Getter, function: FunctionGetter) -> RawGetter:
    made = function(value)
    return lambda ctx: made(ctx)


@value_converter("Items")
def items(values: Slice) -> list[Any]:
    return values


@converter("Sum")
def total(values: list[IntGetter]) -> RawGetter:
    return lambda ctx: sum(value(ctx) for value in values)


@converter("SHOUT")
def shout(value: StringGetter) -> RawGetter:
    return lambda ctx: value(ctx).upper()


@editor("empty")
def empty(target: PMapGetSetter) -> RawGetter:
    def run(ctx: Context) -> None:
        held = target.get(ctx)
        held.clear()
        target.set(ctx, held)

    return run


def _kinds() -> dict[str, Function]:
    functions = {}
    annotations: dict[str, Any] = {
        "Text": StringGetter,
        "Whole": IntGetter,
        "Moment": TimeGetter,
        "Span": DurationGetter,
        "Mapping": PMapGetter,
        "Listing": Slice,
        "Textlike": StringLikeGetter,
        "Wholelike": IntLikeGetter,
        "Reallike": FloatLikeGetter,
        "Truthlike": BoolLikeGetter,
        "Byteslike": ByteSliceLikeGetter,
    }
    for name, annotation in annotations.items():

        def make(value: RawGetter) -> RawGetter:
            return value

        make.__annotations__ = {"value": annotation}
        functions[name] = converter(name)(make).ottl_function  # type: ignore[attr-defined]
    return functions


FUNCTIONS: dict[str, Function] = {
    made.ottl_function.name: made.ottl_function  # type: ignore[attr-defined]
    for made in (join, impure, literals, apply, items, total, shout, empty)
} | _kinds()

RECORD: dict[str, Any] = {
    "body": "text",
    "time_unix_nano": 7,
    "attributes": {"s": "1", "i": 1, "f": 1.5, "b": True, "y": b"\x01", "m": {"k": 1}, "l": [1, 2]},
}


def value(text: str) -> Value:
    ctx = Context({}, {}, {**RECORD, "attributes": dict(RECORD["attributes"])})
    return compile_value_expression(text, functions=FUNCTIONS)(ctx)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ('Join("a", "b")', "a-b"),
        ('Join("a", "b", "+")', "a+b"),
        ('Join("a", second = "b")', "a-b"),
        ('Join(second = "b", first = "a")', "a-b"),
        ('Join("a", "b", separator = "+")', "a+b"),
        ('Join(body, attributes["s"])', "text-1"),
        ('Literals("a", 1, 1.5, true, 0x01, ["x", "y"])', ["a", 1, 1.5, True, b"\x01", ["x", "y"]]),
        ("Impure(SEVERITY_NUMBER_WARN)", 13),
        ("Apply(body, SHOUT)", "TEXT"),
        ("Apply(body, Text)", "text"),
        ('Sum([1, attributes["i"], 3])', 5),
        ('Sum(attributes["l"])', 3),
        ('{"a": [1, {"b": body}]}', {"a": [1, {"b": "text"}]}),
        ('{"a": 1}', {"a": 1}),
        ("+1", 1),
        ("-(1 + 1) * 3", -6),
        ("10 - 3 - 2", 5),
        ("7 / 2 * 2", 6),
        ('attributes["m"]["k"] + 1', 2),
        ('Wholelike("12")', 12),
        ("Wholelike(1.9)", 1),
        ("Wholelike(nil)", None),
        ("Reallike(true)", 1.0),
        ('Reallike("1e3")', 1000.0),
        ('Truthlike("t")', True),
        ("Truthlike(0.0)", False),
        ("Textlike(1.0)", "1"),
        ("Textlike(0x01ff)", "01ff"),
        ('Textlike({"b": 1, "a": [true]})', '{"a":[true],"b":1}'),
        ("Textlike(nil)", None),
        ("Byteslike(1)", b"\0\0\0\0\0\0\0\1"),
        ("Byteslike(true)", b"\1"),
        ('Byteslike("é")', "é".encode()),
        ("Moment(time)", Time(7)),
        ("Span(time - time)", Duration(0)),
    ],
)
def test_values(text: str, result: Value) -> None:
    found = value(text)
    assert found == result
    assert type(found) is type(result)


@pytest.mark.parametrize(
    ("text", "message", "column"),
    [
        ("Jion(body)", 'undefined function "Jion" (did you mean "Join"?)', 1),
        ("Join(body)", "incorrect number of arguments for Join. Expected: 3 Received: 1", 1),
        ('Join("a", "b", "c", "d")', "Expected: 3 Received: 4", 1),
        ('Join(first = "a", "b")', "unnamed argument used after named argument", 19),
        ('Join("a", secnd = "b")', 'no such parameter: secnd (did you mean "second"?)', 11),
        ('Join("a", first = "b")', "Join needs the argument second", 1),
        ("Join(1, body)", "expected string but got int64", 6),
        ("Join(nil, body)", "expected string but got nil", 6),
        ("Literals(body, 1, 1.5, true, 0x01, [])", "must be a string", 10),
        ('Literals("a", 1.5, 1.5, true, 0x01, [])', "must be an int", 15),
        ('Literals("a", -1, 1.5, true, 0x01, [])', "must be an int", 15),
        ('Literals("a", 1, 1, true, 0x01, [])', "must be a float", 18),
        ('Literals("a", 1, 1.5, 1, 0x01, [])', "must be a bool", 23),
        ('Literals("a", 1, 1.5, true, "x", [])', "must be a byte slice literal", 29),
        ('Literals("a", 1, 1.5, true, 0x01, "x")', "must be a list of type str", 35),
        ("Impure(SEVERITY_NUMBER_WRN)", 'did you mean "SEVERITY_NUMBER_WARN"', 8),
        ("Apply(body, 1)", "invalid function name given", 13),
        ("Apply(body, Nope)", 'undefined function "Nope"', 13),
        ("Apply(body, Join)", "incorrect number of arguments for Join", 1),
        ("Join(Text, body)", "a value is wanted here", 6),
        ('Sum(["a"])', "expected int64 but got string", 5),
    ],
)
def test_refused_while_compiling(text: str, message: str, column: int) -> None:
    with pytest.raises(OttlCompileError) as caught:
        compile_value_expression(text, functions=FUNCTIONS)
    assert message in str(caught.value)
    assert (caught.value.line, caught.value.column) == (1, column)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('Join(attributes["i"], body)', "expected string but got int64"),
        ('Join(attributes["nope"], body)', "expected string but got nil"),
        ('Whole(attributes["b"])', "expected int64 but got bool"),
        ('Whole(attributes["f"])', "expected int64 but got float64"),
        ('Mapping(attributes["l"])', "expected pcommon.Map but got pcommon.Slice"),
        ('Listing(attributes["m"])', "expected pcommon.Slice but got pcommon.Map"),
        ("Moment(time_unix_nano)", "expected time but got int64"),
        ('Wholelike(attributes["m"])', "unsupported type: pcommon.Map"),
        ("Wholelike(body)", "invalid syntax"),
        ('Text(Join("a", "b")[0])', "does not support int indexing"),
        ("Join(Items([1])[0], body)", "expected string but got int64"),
        ("Join(1 + 1, body)", "expected string but got int64"),
        ("1 / 0", "divide by 0"),
        ('-attributes["s"]', "unsupported unary minus operation on type string"),
        ('Items(["a"])["b"]', "does not support string indexing"),
        ("Items([1])[3]", "index 3 out of bounds"),
        ('Mapping({"a": 1})["b"]', "key not found in map"),
        ('Mapping({"a": 1})[attributes["nope"]]', "key expression returned nil"),
        ('Mapping({"a": 1})[attributes["f"]]', "key expression must evaluate to string or int, got float64"),
        ('Sum(attributes["s"])', "expected a slice, got string"),
        ('{"t": time}', "<Invalid value type time.Time>"),
    ],
)
def test_fails_on_a_record(text: str, message: str) -> None:
    run = compile_value_expression(text, functions=FUNCTIONS)
    with pytest.raises(OttlRuntimeError) as caught:
        run(Context({}, {}, RECORD))
    assert message in caught.value.message


def test_constant_calls_are_done_once() -> None:
    calls.clear()
    run = compile_value_expression('Join(Join("a", "b"), "c")', functions=FUNCTIONS)
    assert constant_value(run) == "a-b-c"
    made = list(calls)
    run(Context({}, {}, {}))
    assert calls == made


def test_impure_calls_are_not_folded() -> None:
    assert constant_value(compile_value_expression("Impure(1)", functions=FUNCTIONS)) is MISSING


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("true", True),
        ("not true", False),
        ('"a" == "a" and 1 < 2', True),
        ('false and attributes["x"] == 1', False),
        ('attributes["x"] == 1 and false', False),
        ('true or attributes["x"] == 1', True),
        ("1 == 1.0", True),
        ("nil == nil", True),
        ("[1, 2] == [1, 2]", True),
        ('{"a": 1} == {"a": 1.0}', False),
    ],
)
def test_constant_conditions(text: str, result: bool) -> None:
    assert constant_value(compile_condition(text)) is result


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ('body == "text"', True),
        ('"text" == body', True),
        ('body != "text"', False),
        ('attributes["y"] == "\\x01"', False),
        ('attributes["i"] == 1 and attributes["f"] > 1', True),
        ('attributes["i"] == true', False),
        ('attributes["nope"] == nil', True),
        ('attributes["nope"] != nil', False),
        ('attributes["i"] == 2 or attributes["i"] == 3 or body == "text"', True),
        ('attributes["i"] == 1 and attributes["b"] == true and body == "x"', False),
        ('not (attributes["i"] == 2)', True),
        ('Impure(attributes["b"])', True),
        ('not Impure(attributes["b"])', False),
        ('attributes["m"] == {"k": 1}', True),
        ("time == time", True),
        ("trace_id == trace_id", True),
    ],
)
def test_conditions(text: str, result: bool) -> None:
    assert compile_condition(text, functions=FUNCTIONS)(Context({}, {}, RECORD)) is result


def test_a_condition_that_is_no_boolean_fails() -> None:
    run = compile_condition("Impure(body)", functions=FUNCTIONS)
    with pytest.raises(OttlRuntimeError, match="must be bool but got string"):
        run(Context({}, {}, RECORD))


def test_and_stops_at_the_first_that_is_false() -> None:
    assert compile_condition('body == "x" and Whole(body) == 1', functions=FUNCTIONS)(Context({}, {}, RECORD)) is False
    assert compile_condition('body == "text" or Whole(body) == 1', functions=FUNCTIONS)(Context({}, {}, RECORD)) is True


def test_editors_change_live_maps() -> None:
    item = {"attributes": {"m": {"k": 1}, "s": "x"}}
    compile_statement('empty(attributes["m"])', functions=FUNCTIONS).run(Context({}, {}, item))
    assert item == {"attributes": {"m": {}, "s": "x"}}
    with pytest.raises(OttlRuntimeError, match=r"expected pcommon\.Map but got string"):
        compile_statement('empty(attributes["s"])', functions=FUNCTIONS).run(Context({}, {}, item))


@pytest.mark.parametrize("argument", ['{"a": 1}', "Impure(attributes)", "1"])
def test_an_editor_wants_a_path(argument: str) -> None:
    with pytest.raises(OttlCompileError, match="must be a path"):
        compile_statement(f"empty({argument})", functions=FUNCTIONS)


def test_a_statement_says_whether_it_ran() -> None:
    program = compile_statement('set(attributes["a"], 1) where body == "x"')
    assert program.run(Context({}, {}, {"body": "x"})) is True
    assert program.run(Context({}, {}, {"body": "y"})) is False
    assert compile_statement("set(body, 1) where true").where is None


def test_an_error_of_the_condition_points_at_it() -> None:
    with pytest.raises(OttlError) as caught:
        transform({"log": {}}, "set(body, 1) where -body == 1")
    assert (caught.value.line, caught.value.column) == (1, 20)
    assert caught.value.source.startswith("set(body")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("set(body, 1)", 'missing context name for path "body", possibly valid options are: "log.body"'),
        ("set(lgo.body, 1)", 'context "lgo" from path "lgo.body" is not valid'),
        ("set(lgo.body, 1)", 'did you mean "log"?'),
        ('set(log.body, attributes["x"])', "missing context name"),
    ],
)
def test_qualified_paths_only(text: str, message: str) -> None:
    with pytest.raises(OttlCompileError) as caught:
        compile_statement(text, qualified=True)
    assert message in str(caught.value)


def test_local_identifiers_cannot_be_set() -> None:
    with pytest.raises(OttlError):
        compile_value_expression("Items(empty(body))", functions=FUNCTIONS)


def test_every_function_of_the_language_has_readable_parameters() -> None:
    for function in functions_of("log").values():
        names = [parameter.name for parameter in function.parameters]
        assert len(names) == len(set(names))
        required = [parameter.required for parameter in function.parameters]
        assert required == sorted(required, reverse=True), f"{function.name}: optional parameters come last"


def test_a_name_is_declared_once() -> None:
    import types

    module = types.ModuleType("twice")

    def first(value: Getter) -> RawGetter:
        return value

    def second(value: Getter) -> RawGetter:
        return value

    for made in (first, second):
        made.__module__ = "twice"
        setattr(module, made.__name__, converter("Same")(made))
    with pytest.raises(ValueError, match="declared twice"):
        declared([module])

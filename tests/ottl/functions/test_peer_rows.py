"""The rows of the Collector's own tests of its functions, read where they lie and run through ours."""

from __future__ import annotations

import base64
import functools
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tracecore.ottl import functions
from tracecore.ottl.context import Context
from tracecore.ottl.errors import OttlError
from tracecore.ottl.functions import logformats
from tracecore.ottl.signature import MISSING, ArgumentKind, Function, GetSetter, checked, constant, declared
from tracecore.ottl.values import Duration, SpanID, Time, TraceID

FUNCTIONS = declared(functions.MODULES)
BY_PLAIN_NAME = {re.sub(r"[^a-z0-9]", "", name.lower()): function for name, function in FUNCTIONS.items()}

LAMBDAS = {"all", "any", "filter", "find", "map_each", "map_keys", "reduce", "when"}

#: What a row lacks because the test computes it, by function and row name.
FILLED: dict[tuple[str, str], dict[str, Any]] = {
    ("contains_value", "Target is []string"): {"item": "test1"},
    ("decode", "convert base64 ByteSlice"): {"value": b"aGVsbG8gd29ybGQ="},
    ("decode", "decode us-ascii encoded byte slice"): {"value": b"test string"},
    ("delete_index", "delete multiple string elements"): {"target": ["a", "b", "c", "d", "e"]},
    ("delete_index", "delete single bool element"): {"target": [True, False, True, False]},
    ("delete_index", "delete multiple bool elements"): {"target": [True, False, True, False, True]},
    ("delete_index", "delete multiple float elements"): {"target": [1.1, 2.2, 3.3, 4.4, 5.5]},
    ("delete_index", "delete element from multitype slice"): {"target": ["a", 1, None, 2.2]},
    ("delete_index", "delete all elements"): {"target": [0, 1, 2, 3, 4]},
    ("delete_index", "delete with endIndex equal to startIndex"): {"target": [0, 1, 2, 3, 4]},
    ("format", "padded int"): {"vals": [2]},
    ("is_list", "map"): {"value": {}},
    ("microseconds", "100 microseconds"): {"duration": 100_000},
    ("microseconds", "1 hour 40 mins 3 seconds 30 milliseconds 100 microseconds"): {"duration": 6_003_030_100_000},
    ("nanoseconds", "1 hour 40 mins 3 seconds 30 milliseconds 100 microseconds 1 nanosecond"): {
        "duration": 6_003_030_100_001
    },
    ("parse_int", "an out of range string"): {"target": "9" * 30},
    ("parse_severity", "map from status code based on value range"): {
        "mapping": {"info": [{"range": {"min": 200, "max": 299}}], "error": [{"range": {"min": 400, "max": 499}}]}
    },
    ("parse_severity", "map from log level string"): {"mapping": {"info": [{"equals": ["inf", "info"]}]}},
    ("parse_severity", "map from code that matches http status range"): {"mapping": {"info": [{"range": "2xx"}]}},
    ("parse_severity", "invalid mapping format"): {"mapping": {"info": ["foo"]}},
    ("parse_severity", "unexpected type in criteria"): {"mapping": {"error": "foo"}},
    ("parse_severity", "unexpected type in range criteria (min), no match"): {
        "mapping": {"error": [{"range": {"min": "foo", "max": 499}}]}
    },
    ("parse_severity", "unexpected type in target, no match"): {"mapping": {"error": [{"equals": ["err"]}]}},
    ("parse_severity", "missing max in range, no match"): {"mapping": {"error": [{"range": {"min": 400}}]}},
    ("parse_xml", "Exceeds max nesting depth"): {"target": "<a>" * 10_002 + "</a>" * 10_002},
    ("extract_grok_patterns", "grok - custom patterns"): {
        "pattern_definitions": ["MYPATTERN=%{MYDATEPATTERN:timestamp} otel", "MYDATEPATTERN=%{DATE}[- ]%{TIME}"]
    },
    ("seconds", "50 microseconds"): {"duration": 11_000},
    ("slice_to_map", "flat object with key path only"): {"target": "flat"},
    ("slice_to_map", "flat object with missing key value"): {"target": "flat"},
    ("slice_to_map", "flat object with both key and value path"): {"target": "flat"},
    ("slice_to_map", "flat object with key path resolving to non-string"): {"target": "flat"},
    ("slice_to_map", "flat object with only value path"): {"target": "flat"},
    ("slice_to_map", "nested object with key path and value path"): {
        "target": [{"name": "foo", "value": {"test": "x"}}, {"name": "bar", "value": {"test": "y"}}]
    },
    ("slice_to_map", "mixed data types with invalid element"): {"target": [{"name": "foo", "value": 2}, "invalid"]},
    ("slice_to_map", "pcommon.Value slice without key/value path"): {"target": ["x", 42]},
    ("slice_to_map", "mixed types without key/value path"): {"target": ["a", 123, True, "val"]},
}
FLAT = [{"name": "foo", "value": 2}, {"name": "bar", "value": 5}]
DURATIONS = {
    "234us": 234_000,
    "777ns": 777,
    "1s": 10**9,
    "45m": 45 * 60 * 10**9,
    "7m12s": 432 * 10**9,
    "5h23m59s": 19_439 * 10**9,
    "2m1s64us": 121_000_064_000,
    "59h1m78ms": 212_460_078_000_000,
}

#: Rows that cannot be run, and why.
UNUSABLE: dict[tuple[str, str], str] = {
    ("clear", "map"): "a raw Go map, whose zero is nil",
    ("append", "pcommon.Slice"): "compares with a slice that the test fills elsewhere",
    ("append", "pcommon.ValueTypeSlice"): "compares with a slice that the test fills elsewhere",
    ("index", "[]any slice with int value"): "a Go int, which is no OTTL integer",
    ("index", "pcommon.Value with non-slice type (string)"): "a wrapped string, which is a string here",
    ("sort", "[]any with a map"): "a Go map type that is no OTTL value",
    ("set", "set nil (gate enabled)"): "the setter is a test double",
    ("parse_severity", "error in acquiring target, no match"): "the target is a test double that fails",
    ("parse_csv", "Invalid args"): "passes Go arguments of a wrong type",
    ("parse_csv", "Invalid header (strict mode)"): "the header is a test double that fails",
    ("delete_index", "delete from multi slice"): "the list of lists is not in the row",
}
HELPERS = {
    "Test_unescapeCEFHeader": lambda row: logformats.unescape(row["input"], {"|": "|", "\\": "\\"}),
    "Test_unescapeCEFValue": lambda row: logformats.unescape(
        row["input"], {"\\": "\\", "=": "=", "n": "\n", "r": "\r"}
    ),
    "Test_parseCEFExtensions": lambda row: logformats.cef_extensions(row["input"]),
    "Test_unescapeCLF": lambda row: logformats.unescape_clf(row["input"]),
    "Test_parseELFDataLine": lambda row: logformats.elf_values(row["input"]),
    "Test_parseDelimiter": lambda row: logformats.leef_delimiter(row["input"]),
    "Test_parseLEEFAttributes": lambda row: logformats.leef_attributes(row["input"], row["delimiter"]),
}

ALIASES = {
    "value": ("target",),
    "document": ("target",),
    "subdoc": ("sub_document",),
    "destip": ("destination_ip",),
    "destport": ("destination_port",),
    "keep": ("priority_keys",),
    "formatstring": ("format",),
    "formatargs": ("vals",),
    "conflict": ("resolve_conflicts",),
    "marker": ("truncation_marker",),
    "getter": ("target", "value"),
    "source": ("target",),
    "initialvalue": ("target",),
    "original": ("uri",),
    "uastring": ("user_agent",),
    "input": ("target",),
    "targetstring": ("target",),
    "teststring": ("target",),
    "targetvalue": ("target",),
    "pattern": ("regex_pattern",),
    "prefix": ("suffix",),
}
EXPECTED = (
    "expected",
    "want",
    "Want",
    "expect",
    "result",
    "ExpectedMap",
    "expectedValue",
    "wantMap",
    "wantSlice",
)
ERRORS = (
    "expectedError",
    "expectedErr",
    "errorMsg",
    "parseError",
    "createError",
    "parseErrorAnyOf",
    "expectErrorMsg",
    "wantExecutionErr",
    "errContains",
    "hasError",
    "err",
    "errorExpected",
    "IsErrorExpected",
    "shouldError",
    "expectedErrMsg",
    "wantErr",
)
IMPLIED_ERROR = re.compile(r"error|bad_input|bad_depth|validation|bad", re.IGNORECASE)


def _rows() -> list[dict[str, Any]]:
    root = Path(__file__).resolve().parents[3]
    for folder in (os.environ.get("TRACECORE_SHARED_DATA"), root.parent / "shared" / "data"):
        path = Path(folder or "") / "peers" / "ottl_cases.json"
        if folder and path.is_file():
            rows: list[dict[str, Any]] = json.loads(path.read_text())["functions"]
            return rows
    return []


ROWS = _rows()


def _name(row: dict[str, Any]) -> str:
    return str(row["row"].get("name", row["row"].get("Name")))


def value_of(data: Any) -> Any:
    """A value in the data's encoding."""
    if isinstance(data, list):
        return [value_of(item) for item in data]
    if isinstance(data, dict):
        if len(data) == 1:
            ((key, inner),) = data.items()
            if key == "$double":
                return float(inner)
            if key == "$bytes":
                return base64.b64decode(inner)
            if key == "$unix_nano":
                return Time(inner)
            if key in ("$map", "$slice", "$value", "$return"):
                return value_of(inner)
        return {key: value_of(inner) for key, inner in data.items()}
    return data


class Holder:
    """A place that an editor reads and writes."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def get(self, ctx: Context) -> Any:
        return self.value

    def set(self, ctx: Context, value: Any) -> None:
        self.value = value


def _argument(parameter: Any, value: Any, holder: list[Holder]) -> Any:
    kind = parameter.kind
    if parameter.many:
        return [_one(kind, item, holder) for item in value or []]
    return _one(kind, value, holder)


def _one(kind: ArgumentKind | type, value: Any, holder: list[Holder]) -> Any:
    if not isinstance(kind, ArgumentKind):
        return value
    if kind.name == "FunctionGetter":
        return lambda getter: lambda ctx: f"hash({getter(ctx)})"
    if kind.path:
        holder.append(Holder(value))
        read = holder[-1].get if kind.convert is None else checked(holder[-1].get, kind.convert)
        return GetSetter(read, holder[-1].set)
    if kind.name == "DurationGetter" and type(value) is int:
        value = Duration(value)
    if kind.name == "PMapGetter":
        return checked(constant(value), kind.convert)  # ParseSeverity wants a literal

    def read(ctx: Context) -> Any:
        return value

    return read if kind.convert is None else checked(read, kind.convert)


def run_row(entry: dict[str, Any], function: Function) -> Any:
    """Call the function with a row's arguments; the value, or what the edited place then holds."""
    row = {**entry["row"], **FILLED.get((entry["function"], _name(entry)), {})}
    row = {**row, **row.pop("args", {}), **(row.pop("oArgs", None) or {})}
    if row.get("target") == "flat":
        row["target"] = FLAT
    parameters = {parameter.name: parameter for parameter in function.parameters}
    plain = {name.replace("_", ""): name for name in parameters}
    given: dict[str, Any] = {}
    for key, data in row.items():
        folded = key.lower().replace("_", "")
        names = [plain[folded]] if folded in plain else []
        names += [name for name in ALIASES.get(folded, ()) if name in parameters and name not in given]
        if names and names[0] not in given:
            value = value_of(data)
            optional = parameters[names[0]].default is not MISSING
            if optional and (value in ({}, None) or (value == "" and names[0] in ("x_path", "element_name"))):
                continue
            given[names[0]] = value
    local = entry.get("locals", {})
    if "target" not in given or "testString" in row or entry["test"] == "Test_MergeMaps":
        if "input" in local:
            given["target"] = value_of(local["input"]["value"])
            if "testString" in row:
                given["target"]["test"] = row["testString"]
        elif "input" in row:
            given["target"] = value_of(row["input"])
    if entry["test"].startswith("Test_substring") and isinstance(given.get("target"), bytes):
        given["target"] = given["target"].decode("utf-8", "surrogateescape")
    if entry["test"] == "TestTargetType":
        given["value"] = 5
    if entry["function"] == "to_key_value_string":
        given["sort_output"] = True
    if entry["test"] == "Test_MergeMaps":
        given["source"] = value_of(row["source"])
    if entry["function"] == "truncate_all" and isinstance(given.get("target"), str):
        given["target"] = {"test": given["target"]}
    if "function" in entry.get("unresolved_fields", ()):
        given["function"] = "hash"
    if entry["function"] == "parse_clf" and "format" in entry.get("unresolved_fields", ()):
        given["format"] = "combined"
    if entry["function"] == "limit":
        given.setdefault("priority_keys", [])
    holders: list[Holder] = []
    arguments = {name: _argument(parameters[name], value, holders) for name, value in given.items()}
    for name, parameter in parameters.items():
        if name not in arguments and parameter.default is MISSING:
            arguments[name] = _argument(parameter, None, holders)
    ctx = Context({}, {}, {})
    value = function.make(**arguments)(ctx)
    return holders[0].value if function.name[0].islower() else value


def _expects_error(entry: dict[str, Any]) -> bool:
    row = entry["row"]
    if any(row.get(name) not in (None, False, "") for name in ERRORS) or "wantErr" in entry.get(
        "unresolved_fields", ()
    ):
        return True
    if any(name in row for name in EXPECTED):
        return False
    return bool(IMPLIED_ERROR.search(entry["test"]))


def _expectation(entry: dict[str, Any]) -> Any:
    row = entry["row"]
    if _name(entry) == "with locale and location":
        return Time(1014663784 * 10**9)  # the row lost the location: 14:03:04 in New York
    return value_of(next(row[name] for name in EXPECTED if name in row))


def same(expected: Any, actual: Any) -> bool:
    """Equal values. The data write a float without a fraction as an integer in places."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        return expected.keys() == actual.keys() and all(same(expected[key], actual[key]) for key in expected)
    if isinstance(expected, list) and isinstance(actual, list):
        return len(expected) == len(actual) and all(map(same, expected, actual))
    if isinstance(actual, float) and isinstance(expected, (int, float)):
        return abs(expected - actual) < 1e-12 * max(1.0, abs(expected))
    if isinstance(expected, bytes) and isinstance(actual, str):  # a string that is no UTF-8
        return expected == actual.encode("utf-8", "surrogateescape")
    if isinstance(actual, Time) and expected == {}:  # Go's zero time
        return actual == Time(-62_135_596_800 * 10**9)
    if isinstance(actual, Time) and isinstance(expected, int):
        return actual.unix_nano == expected * 1_000_000_000
    if isinstance(expected, Time) and isinstance(actual, int):
        return actual in (
            expected.unix_nano // 10**9,
            expected.unix_nano // 10**6,
            expected.unix_nano // 1000,
            expected.unix_nano,
        )
    return type(expected) is type(actual) and bool(expected == actual)


@functools.cache
def _prefixed(text: str) -> str:
    return {"parse_cef": "cef.", "parse_clf": "clf."}.get(text, "")


def _check_format(entry: dict[str, Any], actual: dict[str, Any]) -> None:
    """Rows of log formats leave out the prefix of the keys."""
    prefix = _prefixed(entry["function"])
    bare = {key.removeprefix(prefix): value for key, value in actual.items()}
    for key, value in _expectation(entry).items():
        assert same(value, bare[key]), key
    for key in entry["row"].get("absent", ()):
        assert key not in bare


IDS = [f"{entry['function']}: {_name(entry)}" for entry in ROWS]


@pytest.mark.skipif(not ROWS, reason="no shared test data: set TRACECORE_SHARED_DATA to a directory that has it")
def test_the_rows_are_there() -> None:
    assert len(ROWS) > 500
    assert len(UNUSABLE) < 15


@pytest.mark.parametrize("entry", ROWS, ids=IDS)
def test_row(entry: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    name, test = _name(entry), entry["test"]
    if entry["function"] in LAMBDAS:
        pytest.skip("takes a lambda: upstream has it behind a feature gate")
    if (entry["function"], name) in UNUSABLE and (test != "TestTargetType" or entry["function"] == "append"):
        pytest.skip(UNUSABLE[entry["function"], name])
    unresolved = entry.get("unresolved_fields", [])
    if unresolved == ["value"] and re.match(r"p(log|metric|trace)", name):
        # Slices of records are plain lists here.
        assert FUNCTIONS["IsList" if entry["function"] == "is_list" else "Len"].make(target=lambda ctx: [0] * 5)(
            None
        ) in (
            True,
            5,
        )
        return
    if test in HELPERS:
        if _expects_error(entry):
            with pytest.raises(OttlError):
                HELPERS[test](entry["row"])
        else:
            assert HELPERS[test](entry["row"]) == _expectation(entry)
        return
    if test == "Test_parseELFDirective":
        block = f"{entry['row']['input']}\n#Version: 1.0"
        parsed = FUNCTIONS["ParseELF"].make(target=constant(block))(Context({}, {}, {}))
        if "errContains" in entry["row"]:
            assert "elf.remark" not in parsed
        else:
            assert entry["row"]["wantValue"] in parsed.values()
        return
    if entry["function"] == "lpers":
        with pytest.raises(OttlError):
            FUNCTIONS["SpanID"].make(constant(entry["row"]["value"].encode()))(Context({}, {}, {}))
        return
    if entry["function"] == "duration" and unresolved == ["expected"]:
        assert run_row(entry, FUNCTIONS["Duration"]) == Duration(DURATIONS[entry["row"]["duration"]])
        return
    function = BY_PLAIN_NAME[re.sub(r"[^a-z0-9]", "", entry["function"])]
    if _expects_error(entry):
        with pytest.raises(OttlError) as caught:
            run_row(entry, function)
        _check_message(entry, str(caught.value))
        return
    if not any(key in entry["row"] for key in EXPECTED):
        run_row(entry, function)  # the row says only that it works
        return
    if _expectation(entry) is None:
        # A failed conversion is an error here and nil in the row.
        try:
            actual = run_row(entry, function)
        except OttlError:
            return
        assert actual is None
        return
    actual = run_row(entry, function)
    if _prefixed(entry["function"]):
        _check_format(entry, actual)
    elif entry["function"] == "extract_grok_patterns":  # the row lists some of what is captured
        assert {key: actual[key] for key in _expectation(entry)} == _expectation(entry)
    elif test == "Test_truncateAll_UTF8":
        assert actual == {"test": _expectation(entry)}
    else:
        assert same(_expectation(entry), actual), actual


WORDED = (
    "expectedError",
    "expectedErr",
    "expectErrorMsg",
    "wantExecutionErr",
    "errContains",
    "expectedErrMsg",
    "errorMsg",
)


def _check_message(entry: dict[str, Any], message: str) -> None:
    for key in WORDED:
        wanted = entry["row"].get(key)
        if isinstance(wanted, str):
            # Go's int is our int64, and a Go map prints its address.
            wanted = re.sub(r"\bint$|\bInt$", "int64", wanted).replace("got Bool", "got bool")
            assert wanted.split("unsupported value type")[0].strip() in message or wanted in message, message


def test_ids_are_types_of_their_own() -> None:
    assert issubclass(TraceID, bytes)
    assert issubclass(SpanID, bytes)

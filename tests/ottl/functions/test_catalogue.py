"""The catalogue of functions as a whole: complete, named as the Collector names it, documented."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tracecore.ottl import functions
from tracecore.ottl.compile import compile_value_expression
from tracecore.ottl.context import Context
from tracecore.ottl.signature import MISSING, ArgumentKind, Function, Parameter, declared

FUNCTIONS = declared(functions.MODULES)
PAGE = Path(__file__).resolve().parents[3] / "docs" / "ottl.md"

#: The functions of the Collector (contrib 0.164) that no feature gate holds back, with the names of their arguments;
#: `?` marks what may be left out.
UPSTREAM = """
    aggregate_on_attribute_value(AggregationFunction Attribute Values NewValue)
    aggregate_on_attributes(AggregationFunction Attributes?)
    append(Target Value? Values?)
    clear(Target)
    convert_exponential_histogram_to_histogram(DistributionFn ExplicitBounds)
    convert_gauge_to_sum(StringAggTemp Monotonic)
    convert_sum_to_gauge()
    convert_summary_count_val_to_sum(StringAggTemp Monotonic Suffix?)
    convert_summary_quantile_val_to_gauge(AttributeKey? Suffix?)
    convert_summary_sum_val_to_sum(StringAggTemp Monotonic Suffix?)
    copy_metric(Name? Description? Unit?)
    delete_index(Target StartIndex EndIndex?)
    delete_key(Target Key)
    delete_matching_keys(Target Pattern)
    extract_avg_metric(Suffix?)
    extract_count_metric(Monotonic Suffix?)
    extract_percentile_metric(Percentile Suffix?)
    extract_sum_metric(Monotonic Suffix?)
    flatten(Target Prefix? Depth? ResolveConflicts?)
    keep_keys(Target Keys)
    keep_matching_keys(Target Pattern)
    limit(Target Limit PriorityKeys)
    merge_histogram_buckets(TargetValue Method?)
    merge_maps(Target Source Strategy)
    replace_all_matches(Target Pattern Replacement Function? ReplacementFormat?)
    replace_all_patterns(Target Mode RegexPattern Replacement Function? ReplacementFormat?)
    replace_match(Target Pattern Replacement Function? ReplacementFormat?)
    replace_pattern(Target RegexPattern Replacement Function? ReplacementFormat?)
    scale_metric(Multiplier Unit?)
    set(Target Value)
    set_semconv_span_name(SemconvVersion OriginalSpanNameAttribute?)
    stringify_all(Target)
    truncate_all(Target Limit Utf8Safe? TruncationMarker?)
    Base64Encode(Target Variant?)
    Bool(Target)
    Coalesce(Values)
    CommunityID(SourceIP SourcePort DestinationIP DestinationPort Protocol? Seed?)
    Concat(Vals Delimiter)
    ContainsValue(Target Item)
    ConvertAttributesToElementsXML(Target XPath?)
    ConvertCase(Target ToCase)
    ConvertTextToElementsXML(Target XPath? ElementName?)
    Day(Time)
    Decode(Target Encoding)
    Double(Target)
    Duration(Duration)
    ExtractGrokPatterns(Target Pattern NamedCapturesOnly? PatternDefinitions?)
    ExtractPatterns(Target Pattern)
    FNV(Target)
    Format(Format Vals)
    FormatTime(Time Format)
    GetXML(Target XPath)
    HasPrefix(Target Prefix)
    HasSuffix(Target Suffix)
    Hex(Target)
    Hour(Time)
    Hours(Duration)
    Index(Target Value)
    InsertXML(Target XPath SubDocument)
    Int(Target)
    IsBool(Target)
    IsDouble(Target)
    IsEmpty(Target)
    IsInCIDR(Target Networks)
    IsInt(Target)
    IsList(Target)
    IsMap(Target)
    IsMatch(Target Pattern)
    IsRootSpan()
    IsString(Target)
    IsValidLuhn(Target)
    Keys(Target)
    Len(Target)
    Log(Target)
    MD5(Target)
    Microseconds(Duration)
    Milliseconds(Duration)
    Minute(Time)
    Minutes(Duration)
    Month(Time)
    Murmur3Hash(Target)
    Murmur3Hash128(Target)
    Nanosecond(Time)
    Nanoseconds(Duration)
    Now()
    ParseCEF(Target)
    ParseCLF(Target Format?)
    ParseCSV(Target Header Delimiter? HeaderDelimiter? Mode?)
    ParseELF(Target)
    ParseInt(Target Base)
    ParseJSON(Target)
    ParseKeyValue(Target Delimiter? PairDelimiter?)
    ParseLEEF(Target)
    ParseSeverity(Target Mapping)
    ParseSimplifiedXML(Target)
    ParseXML(Target)
    RemoveXML(Target XPath)
    Second(Time)
    Seconds(Duration)
    SHA1(Target)
    SHA256(Target)
    SHA512(Target)
    SliceToMap(Target KeyPath? ValuePath?)
    Sort(Target Order?)
    SpanID(Target)
    Split(Target Delimiter)
    String(Target)
    Substring(Target Start Length Utf8Safe?)
    Time(Time Format Location? Locale?)
    ToCamelCase(Target)
    ToKeyValueString(Target Delimiter? PairDelimiter? SortOutput?)
    ToLowerCase(Target)
    ToSnakeCase(Target)
    ToUpperCase(Target)
    TraceID(Target)
    Trim(Target Replacement?)
    TrimPrefix(Target Prefix)
    TrimSuffix(Target Suffix)
    TruncateTime(Time Duration)
    Unix(Seconds Nanoseconds?)
    UnixMicro(Time)
    UnixMilli(Time)
    UnixNano(Time)
    UnixSeconds(Time)
    URL(URI)
    UserAgent(UserAgent)
    UUID()
    UUIDv7()
    Values(Target)
    Weekday(Time)
    XXH128(Target)
    XXH3(Target)
    Year(Time)
"""

#: Functions that the Collector had or has elsewhere: for profiles, and under an older name.
MORE = {"ProfileID", "Base64Decode"}

#: Functions of the shared data that take a lambda, which a feature gate holds back.
GATED = {"all", "any", "filter", "find", "mapeach", "mapkeys", "reduce", "when"}


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _upstream() -> dict[str, list[str]]:
    found = re.findall(r"^ +(\w+)\((.*)\)$", UPSTREAM, re.MULTILINE)
    return {name: arguments.split() for name, arguments in found}


def test_every_function_of_the_collector_is_here() -> None:
    assert set(FUNCTIONS) == set(_upstream()) | MORE


@pytest.mark.parametrize(("name", "arguments"), _upstream().items(), ids=_upstream())
def test_arguments_have_the_collectors_names_and_order(name: str, arguments: list[str]) -> None:
    ours = [parameter.name + "?" * (not parameter.required) for parameter in FUNCTIONS[name].parameters]
    assert [_plain(argument) + argument[-1:] for argument in ours] == [
        _plain(argument) + (argument[-1:] if argument.endswith("?") else argument[-1:].lower())
        for argument in arguments
    ]


def test_every_function_of_the_shared_data_is_here(shared_data: Path) -> None:
    rows = json.loads((shared_data / "peers" / "ottl_cases.json").read_text())["functions"]
    known = {_plain(name) for name in FUNCTIONS}
    wanted = {_plain(row["function"]) for row in rows} - GATED - {"lpers"}  # the last is a helper of ids
    assert wanted <= known, wanted - known


def test_names_say_what_a_function_is() -> None:
    for name, function in FUNCTIONS.items():
        assert function.make.__doc__, name
        assert name[0].isupper() or not function.pure, f"{name} changes the record, so it is not pure"


def _type(parameter: Parameter) -> str:
    kind = parameter.kind
    name = kind.name.removesuffix("Getter") if isinstance(kind, ArgumentKind) else kind.__name__
    names = {
        "": "any",
        "GetSetter": "path",
        "GetSet": "path",
        "Set": "path",
        "Setter": "path",
        "PMapGetSetter": "path to a map",
        "PSliceGetSetter": "path to a list",
        "PMap": "map",
        "PSlice": "list",
        "String": "string",
        "StringLike": "string-like",
        "IntLike": "int-like",
        "FloatLike": "float-like",
        "BoolLike": "bool-like",
        "ByteSliceLike": "bytes-like",
        "Int": "int",
        "Float": "float",
        "Time": "time",
        "Duration": "duration",
        "Function": "converter",
        "str": "literal string",
        "int": "literal int",
        "float": "literal float",
        "bool": "literal bool",
    }
    return ("list of " if parameter.many else "") + names[name]


def _row(function: Function) -> str:
    """A function's line in the page."""
    shown = []
    for parameter in function.parameters:
        text = f"{parameter.name}: {_type(parameter)}"
        if parameter.default is not MISSING:
            default = "" if parameter.default in (None, "") else f" = {json.dumps(parameter.default)}"
            text = f"[{text}{default}]"
        shown.append(text)
    where = f" ({', '.join(function.contexts)})" if function.contexts else ""
    about = " ".join((inspect.getdoc(function.make) or "").split("\n\n")[0].split())
    return f"| `{function.name}({', '.join(shown)})`{where} | {about} |".replace("'|'", "'\\|'")


def table() -> str:
    """The table of the page: editors, then converters, each in the order of their modules."""
    rows = [_row(function) for function in FUNCTIONS.values()]
    heads = {"Editors": str.islower, "Converters": str.isupper}
    return "\n".join(
        f"### {head}\n\n| function | does |\n|---|---|\n"
        + "\n".join(row for row, name in zip(rows, FUNCTIONS, strict=True) if is_of(name[0]))
        + "\n"
        for head, is_of in heads.items()
    )


def test_the_page_has_every_function_as_it_is_declared() -> None:
    page = PAGE.read_text()
    missing = [line for line in table().splitlines() if line not in page]
    assert not missing, "docs/ottl.md lacks:\n" + "\n".join(missing)
    named = re.findall(r"^\| `(\w+)\(", page, re.MULTILINE)
    assert sorted(named) == sorted(FUNCTIONS)


@pytest.mark.parametrize(
    "expression", re.findall(r"^    (\S.*?)\s+→ ", PAGE.read_text() if PAGE.exists() else "", re.MULTILINE)
)
def test_the_pages_examples_work(expression: str) -> None:
    (wanted,) = re.findall(rf"^    {re.escape(expression)}\s+→ (.*)$", PAGE.read_text(), re.MULTILINE)
    record = {"attributes": {}, "body": "step 5 loss 1.5"}
    assert json.dumps(compile_value_expression(expression)(Context({}, {}, record))) == wanted


def test_importing_the_language_reads_no_functions() -> None:
    code = "import sys, tracecore.ottl; print('tracecore.ottl.functions' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


if __name__ == "__main__":
    print(table())

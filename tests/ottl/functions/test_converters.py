"""Every converter: what it gives, what it gives at the edge, and how it fails."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tracecore.ottl import functions
from tracecore.ottl.compare import deep_equal
from tracecore.ottl.compile import compile_value_expression
from tracecore.ottl.context import Context
from tracecore.ottl.errors import OttlError
from tracecore.ottl.functions import clock
from tracecore.ottl.signature import declared
from tracecore.ottl.values import Duration, ProfileID, SpanID, Time, TraceID


class Fails(str):
    """The row must fail with a message that has this text."""

    __slots__ = ()


WRONG = Fails("expected string but got")
NO_TIME = Fails("expected time but got")
NO_DURATION = Fails("expected duration but got")
NO_MAP = Fails("expected pcommon.Map but got")
NO_LIST = Fails("expected pcommon.Slice but got")
ARGUMENTS = Fails("argument")
TIME = 'Time("2024-02-29T13:04:05.123456789Z", "%Y-%m-%dT%H:%M:%S.%sZ")'
INSTANT = 1_709_211_845_123_456_789

ATTRIBUTES: dict[str, Any] = {
    "text": "hello world",
    "umlaut": "größe",
    "number": 42,
    "float": 2.5,
    "yes": True,
    "bytes": b"\x01\xff",
    "list": [3, 1, 2],
    "mixed": [1, "a", 2.0, True],
    "map": {"a": 1, "b": {"c": "x"}},
    "pairs": [{"k": "x", "v": 1}, {"k": "y", "v": 2}],
    "cef": "CEF:0|Vendor|Product|1.0|100|Name|5|src=10.0.0.1 msg=two words",
    "leef": "LEEF:2.0|Vendor|Product|1.0|100|^|a=1^b=2",
    "clf": '127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.0" 200 2326',
    "elf": '#Version: 1.0\n#Fields: time text\n10:00 "a ""b"""\n10:01',
    "xml": '<a x="1"><b>one</b><b>two</b>tail</a>',
    "network": "10.0.0.0/8",
    "regex": "w(?P<rest>.*)",
}

ROWS: dict[str, list[tuple[str, Any]]] = {
    # Text.
    "Concat": [
        ('Concat([attributes["text"], 1, 2.5, nil, true], "-")', "hello world-1-2.5-<nil>-true"),
        ('Concat([], ",")', ""),
        ('Concat(attributes["list"], "+")', "3+1+2"),
        ('Concat(attributes["text"], "+")', Fails("expected a list but got string")),
    ],
    "Format": [
        ('Format("%05.1f|%-4d|%s|%x|%%", [attributes["float"], 7, "a", 255])', "002.5|7   |a|ff|%"),
        ('Format("%d %s", ["x"])', "%!d(string=x) %!s(MISSING)"),
        ('Format("none", [1])', "none%!(EXTRA int64=1)"),
        ("Format(1, [1])", Fails("must be a string")),
    ],
    "HasPrefix": [
        ('HasPrefix(attributes["text"], "hell")', True),
        ('HasPrefix("", "")', True),
        ('HasPrefix(attributes["number"], "4")', WRONG),
    ],
    "HasSuffix": [
        ('HasSuffix(attributes["text"], "world")', True),
        ('HasSuffix("a", "aa")', False),
        ('HasSuffix(attributes["none"], "4")', WRONG),
    ],
    "Split": [
        ('Split("a|b||c", "|")', ["a", "b", "", "c"]),
        ('Split("äb", "")', ["ä", "b"]),
        ('Split(attributes["number"], "|")', WRONG),
    ],
    "Substring": [
        ('Substring(attributes["text"], 6, 5)', "world"),
        ('Substring(attributes["umlaut"], 0, 4, true)', "grö"),
        ('Substring(attributes["umlaut"], 0, 3, true)', "gr"),
        ('Substring(attributes["umlaut"], 0, 3)', "gr\udcc3"),
        ('Substring(attributes["text"], 6, 6)', Fails("cannot be greater than the length of target string(11)")),
        ('Substring(attributes["text"], -1, 6)', Fails("cannot be negative")),
    ],
    "Trim": [
        ('Trim("  a b  ")', "a b"),
        ('Trim("--a--", "-")', "a"),
        ('Trim(attributes["yes"])', WRONG),
    ],
    "TrimPrefix": [
        ('TrimPrefix("foobar", "foo")', "bar"),
        ('TrimPrefix("foobar", "bar")', "foobar"),
        ('TrimPrefix(attributes["yes"], "a")', WRONG),
    ],
    "TrimSuffix": [
        ('TrimSuffix("foobar", "bar")', "foo"),
        ('TrimSuffix("foobar", "")', "foobar"),
        ('TrimSuffix(attributes["yes"], "a")', WRONG),
    ],
    "ToLowerCase": [
        ('ToLowerCase("ÄB")', "äb"),
        ('ToLowerCase("İ")', "i"),
        ('ToLowerCase(attributes["number"])', WRONG),
    ],
    "ToUpperCase": [
        ('ToUpperCase("größe")', "GRÖßE"),
        ('ToUpperCase("")', ""),
        ('ToUpperCase(attributes["number"])', WRONG),
    ],
    "ToSnakeCase": [
        ('ToSnakeCase("someHTTPCode9")', "some_http_code_9"),
        ('ToSnakeCase("a-b.c d")', "a_b_c_d"),
        ('ToSnakeCase(attributes["number"])', WRONG),
    ],
    "ToCamelCase": [
        ('ToCamelCase("some_name-of.it")', "SomeNameOfIt"),
        ('ToCamelCase("http2server")', "Http2Server"),
        ('ToCamelCase("a0b9cZ")', "A0B9CZ"),
        ('ToCamelCase("")', ""),
        ('ToCamelCase(attributes["number"])', WRONG),
    ],
    "ConvertCase": [
        ('ConvertCase("someName", "snake")', "some_name"),
        ('ConvertCase("a", "upper")', "A"),
        ('ConvertCase("a", "title")', Fails("allowed cases are: lower, upper, snake, camel")),
    ],
    # Patterns.
    "IsMatch": [
        ('IsMatch(attributes["text"], "w.rld$")', True),
        ('IsMatch(attributes["none"], ".*")', False),
        ('IsMatch(attributes["number"], "^42$")', True),
        ('IsMatch(attributes["text"], attributes["regex"])', True),
        ('IsMatch(attributes["text"], "(")', Fails("is not a valid pattern")),
        (r'IsMatch(attributes["text"], "\\C")', Fails("invalid escape sequence")),
    ],
    "ExtractPatterns": [
        (
            r'ExtractPatterns(attributes["text"], "(?P<a>\\w+) (?P<b>\\w+)(?P<c>x)?")',
            {"a": "hello", "b": "world", "c": ""},
        ),
        ('ExtractPatterns(attributes["text"], "(?P<a>z)")', {}),
        ('ExtractPatterns(attributes["text"], "(z)")', Fails("at least 1 named capture group")),
    ],
    "ExtractGrokPatterns": [
        (
            'ExtractGrokPatterns("10.0.0.1 took 1.5", "%{IP:net.peer} took %{NUMBER:took:double}", true)',
            {"net.peer": "10.0.0.1", "took": 1.5},
        ),
        ('ExtractGrokPatterns("abc", "%{INT}")', {}),
        ('ExtractGrokPatterns("ab-1", "%{ID:id}", true, ["ID=[a-z]+-%{INT}"])', {"id": "ab-1"}),
        ('ExtractGrokPatterns("a", "%{NOPE}")', Fails('pattern definition "NOPE" unknown')),
        ('ExtractGrokPatterns("a", "%{A}", false, ["A=%{A}"])', Fails("grows past")),
    ],
    # Formats.
    "ParseJSON": [
        ('ParseJSON("{\\"a\\": 1, \\"b\\": [null, true, \\"x\\"]}")', {"a": 1.0, "b": [None, True, "x"]}),
        ('ParseJSON("[]")', []),
        ('ParseJSON("1")', Fails("could not convert parsed value of type float64")),
        ('ParseJSON("{")', Fails("invalid JSON")),
        ('ParseJSON("[NaN]")', Fails("invalid")),
    ],
    "ParseKeyValue": [
        ('ParseKeyValue("a=1 b=\\"x y\\" c=\'d=e\'")', {"a": "1", "b": "x y", "c": "d=e"}),
        ('ParseKeyValue("a:1|b:2", ":", "|")', {"a": "1", "b": "2"}),
        ('ParseKeyValue("a=1 b")', Fails('cannot split "b" into 2 items')),
        ('ParseKeyValue("a=1", "=", "=")', Fails("cannot be equal to delimiter")),
    ],
    "ParseCSV": [
        ('ParseCSV("1,\\"a,b\\",x", "n|t|u", headerDelimiter="|")', {"n": "1", "t": "a,b", "u": "x"}),
        ('ParseCSV("1,a\\nb,x", "n,t,u")', {"n": "1", "t": "a\nb", "u": "x"}),
        ('ParseCSV("1;a\\"b", "n;t", ";", mode="lazyQuotes")', {"n": "1", "t": 'a"b'}),
        ('ParseCSV("1", "n,t")', Fails("wrong number of fields: expected 2, found 1")),
        ('ParseCSV("1", "n", mode="loose")', Fails("unknown mode: loose")),
    ],
    "ParseSeverity": [
        ('ParseSeverity(404, {"error": [{"range": "4xx"}], "info": [{"range": {"min": 200, "max": 299}}]})', "error"),
        ('ParseSeverity("inf", {"info": [{"equals": ["inf", "info"]}]})', "info"),
        ('ParseSeverity("x", {"info": [{"equals": ["inf"]}]})', Fails("no matching log level found")),
        ('ParseSeverity(1.5, {"info": [{"equals": ["inf"]}]})', Fails("unsupported value type: float64")),
    ],
    "ParseCEF": [
        (
            'ParseCEF(attributes["cef"])',
            {
                "cef.version": "0",
                "cef.device_vendor": "Vendor",
                "cef.device_product": "Product",
                "cef.device_version": "1.0",
                "cef.device_event_class_id": "100",
                "cef.name": "Name",
                "cef.severity": "5",
                "cef.extensions": {"src": "10.0.0.1", "msg": "two words"},
            },
        ),
        ('ParseCEF("CEF:0|a|b|c|d|e|f")["cef.extensions"]', {}),
        ('ParseCEF("CEF:0|a")', Fails("expected at least 7")),
    ],
    "ParseLEEF": [
        (
            'ParseLEEF(attributes["leef"])',
            {
                "leef.version": "2.0",
                "leef.vendor": "Vendor",
                "leef.product.name": "Product",
                "leef.product.version": "1.0",
                "leef.event.id": "100",
                "leef.attributes": {"a": "1", "b": "2"},
            },
        ),
        ('ParseLEEF("LEEF:1.0|V|P|1|9|a=1\\tb=2")["leef.attributes"]', {"a": "1", "b": "2"}),
        ('ParseLEEF("LEEF:3.0|V|P|1|9|")', Fails("unsupported LEEF version: 3.0")),
    ],
    "ParseCLF": [
        ('ParseCLF(attributes["clf"])["clf.bytes"]', 2326),
        ('ParseCLF(attributes["clf"])["clf.request_uri"]', "/a"),
        ('ParseCLF("x")', Fails('does not match expected "clf" format')),
        ('ParseCLF("x", "nginx")', Fails("must be")),
    ],
    "ParseELF": [
        (
            'ParseELF(attributes["elf"])',
            {
                "elf.entries": [{"time": "10:00", "text": 'a "b"'}, {"time": "10:01", "text": "-"}],
                "elf.version": "1.0",
                "elf.fields": ["time", "text"],
            },
        ),
        ('ParseELF("#Version: 1.0")', {"elf.entries": [], "elf.version": "1.0", "elf.fields": []}),
        ('ParseELF("#Version: 1.0\\nx")', Fails("data entry found before #Fields")),
    ],
    # XML.
    "GetXML": [
        ('GetXML(attributes["xml"], "/a/b[2]/text()")', "two"),
        ('GetXML(attributes["xml"], "/a/@x")', "1"),
        ('GetXML("<a><b>1</b>2<b>3</b></a>", "//text()")', "123"),
        ('GetXML("", "/a")', ""),
        ('GetXML("<e xmlns=\\"u\\"><b>1</b></e>", "/e/b")', "<b>1</b>"),
        ('GetXML("<a>x</a><b>y</b>", "/b")', "<b>y</b>"),
        ('GetXML("<a><b>1</b><b>2</b></a>", "/a[/a/b=2]/b[. = 1 or . * 2 = 4]")', "<b>1</b><b>2</b>"),
        ('GetXML("<a><b>One</b><b>two</b></a>", "//b[lower-case(.)=\'one\']")', "<b>One</b>"),
        ('GetXML("<a><b>One</b><b>two</b></a>", "//b[matches(., \'^t\')]")', "<b>two</b>"),
        ('GetXML("<a>it\'s</a>", "/a")', "<a>it&#39;s</a>"),
        ('GetXML(attributes["xml"], "/a[")', Fails("invalid xpath")),
        ('GetXML("<a>", "/a")', Fails("tag mismatch: a line 1")),
    ],
    "InsertXML": [
        ('InsertXML("<a><b/></a>", "/a/b", "<c/>")', "<a><b><c></c></b></a>"),
        ('InsertXML("<a></a>", "/z", "<c/>")', "<a></a>"),
        ('InsertXML("<a>t</a>", "/a/text()", "<c/>")', Fails("selected non-element")),
    ],
    "RemoveXML": [
        ('RemoveXML(attributes["xml"], "//b")', '<a x="1">tail</a>'),
        ('RemoveXML(attributes["xml"], "//@x")', "<a><b>one</b><b>two</b>tail</a>"),
        ('RemoveXML("<a></b>", "//b")', Fails("tag mismatch: a line 1 and b")),
    ],
    "ConvertAttributesToElementsXML": [
        ('ConvertAttributesToElementsXML("<a x=\\"1\\"/>")', "<a><x>1</x></a>"),
        (
            'ConvertAttributesToElementsXML("<a x=\\"1\\"><b y=\\"2\\"/></a>", "/a/b/@y")',
            '<a x="1"><b><y>2</y></b></a>',
        ),
        ('ConvertAttributesToElementsXML("text")', Fails("invalid XML document")),
    ],
    "ConvertTextToElementsXML": [
        ('ConvertTextToElementsXML("<a><b/>foo</a>")', "<a><b></b><value>foo</value></a>"),
        ('ConvertTextToElementsXML("<a>foo</a>", elementName="t")', "<a>foo</a>"),
        ('ConvertTextToElementsXML("<a/>", "][")', Fails("invalid xpath")),
    ],
    "ParseSimplifiedXML": [
        ('ParseSimplifiedXML(attributes["xml"])', {"a": {"b": ["one", "two"]}}),
        ('ParseSimplifiedXML("<a/>")', {}),
        ('ParseSimplifiedXML("<a>&x;</a>")', Fails("Entity 'x' not defined")),
    ],
    "ParseXML": [
        (
            'ParseXML(attributes["xml"])',
            {
                "tag": "a",
                "content": "tail",
                "attributes": {"x": "1"},
                "children": [{"tag": "b", "content": "one"}, {"tag": "b", "content": "two"}],
            },
        ),
        ('ParseXML("<a/>")', {"tag": "a"}),
        ('ParseXML("<a/>x")', Fails("trailing bytes after parsing xml")),
    ],
    "URL": [
        (
            'URL("HTTPS://u:p@Example.com:8080/a%20b/c.tar?x=1#top")',
            {
                "url.original": "https://u:p@Example.com:8080/a%20b/c.tar?x=1#top",
                "url.domain": "Example.com",
                "url.scheme": "https",
                "url.path": "/a b/c.tar",
                "url.port": 8080,
                "url.fragment": "top",
                "url.user_info": "u:p",
                "url.username": "u",
                "url.password": "p",
                "url.query": "x=1",
                "url.extension": "tar",
            },
        ),
        ('URL("?a=1&a=2&b=x+y")', {"query": {"a": ["1", "2"], "b": ["x y"]}}),
        ('URL("http://h:x/")', Fails('invalid port ":x" after host')),
        ('URL("http://a%20b/")', Fails('invalid URL escape "%20"')),
        ('URL("")', Fails("url cannot be empty")),
    ],
    # Types.
    "IsString": [
        ('IsString(attributes["text"])', True),
        ('IsString(attributes["bytes"])', False),
        ("IsString()", ARGUMENTS),
    ],
    "IsBool": [('IsBool(attributes["yes"])', True), ('IsBool(attributes["number"])', False), ("IsBool()", ARGUMENTS)],
    "IsInt": [('IsInt(attributes["number"])', True), ('IsInt(attributes["yes"])', False), ("IsInt()", ARGUMENTS)],
    "IsDouble": [
        ('IsDouble(attributes["float"])', True),
        ('IsDouble(attributes["number"])', False),
        ("IsDouble()", ARGUMENTS),
    ],
    "IsMap": [('IsMap(attributes["map"])', True), ('IsMap(attributes["none"])', False), ("IsMap()", ARGUMENTS)],
    "IsList": [('IsList(attributes["list"])', True), ('IsList(attributes["text"])', False), ("IsList()", ARGUMENTS)],
    "IsEmpty": [
        ('IsEmpty(attributes["none"])', True),
        ('IsEmpty(attributes["number"])', False),
        ('IsEmpty("")', True),
        ("IsEmpty()", ARGUMENTS),
    ],
    "Len": [
        ('Len(attributes["umlaut"])', 7),
        ('Len(attributes["map"])', 2),
        ('Len(attributes["number"])', Fails("unsupported target type int64")),
    ],
    "Bool": [('Bool("t")', True), ('Bool(attributes["none"])', None), ('Bool("yes")', Fails("strconv.ParseBool"))],
    "Int": [
        ('Int("42")', 42),
        ('Int(attributes["float"])', 2),
        ('Int("9223372036854775808")', Fails("value out of range")),
        ('Int(attributes["list"])', Fails("unsupported type")),
    ],
    "Double": [
        ('Double("1e3")', 1000.0),
        ('Double(attributes["yes"])', 1.0),
        ('Double("x")', Fails("strconv.ParseFloat")),
    ],
    "String": [
        ('String(attributes["map"])', '{"a":1,"b":{"c":"x"}}'),
        ('String(attributes["bytes"])', "01ff"),
        ('String(attributes["none"])', None),
        ("String()", ARGUMENTS),
    ],
    "Coalesce": [
        ('Coalesce([attributes["none"], attributes["number"], 1])', 42),
        ('Coalesce([attributes["none"], nil])', None),
        ("Coalesce([])", Fails("requires at least one argument")),
    ],
    # Numbers.
    "Log": [("Log(1)", 0.0), ('Log("1")', 0.0), ("Log(0)", Fails("greater than zero")), ("Log(nil)", Fails("<nil>"))],
    "ParseInt": [
        ('ParseInt("-ff", 16)', -255),
        ('ParseInt("0b11", 0)', 3),
        ('ParseInt("1_000", 0)', 1000),
        ('ParseInt("12", 2)', Fails("invalid syntax")),
        ('ParseInt("", 10)', Fails("cannot be empty")),
        ('ParseInt("1", 40)', Fails("invalid base 40")),
        ('ParseInt("1", 1)', Fails("invalid base 1")),
        ('ParseInt("1", 37)', Fails("invalid base 37")),
        ('ParseInt("z", 36)', 35),
    ],
    "IsValidLuhn": [
        ('IsValidLuhn("17893729974")', True),
        ('IsValidLuhn("17893729975")', False),
        ('IsValidLuhn("")', False),
        ('IsValidLuhn("12a4")', Fails("invalid syntax")),
    ],
    # Lists and maps.
    "ContainsValue": [
        ('ContainsValue(attributes["list"], 2.0)', True),
        ('ContainsValue(attributes["mixed"], "1")', False),
        ('ContainsValue(attributes["text"], "h")', NO_LIST),
    ],
    "Index": [
        ('Index(attributes["list"], 2)', 2),
        ('Index(attributes["umlaut"], "e")', 6),
        ('Index(attributes["list"], 9)', -1),
        ('Index(attributes["text"], 1)', Fails("value must be a string")),
    ],
    "Sort": [
        ('Sort(attributes["list"], "desc")', [3, 2, 1]),
        ('Sort(attributes["mixed"])', [1, 2.0, "a", True]),
        ('Sort(attributes["pairs"])', [{"k": "x", "v": 1}, {"k": "y", "v": 2}]),
        ('Sort(attributes["text"])', Fails("Target is not a list")),
        ('Sort(attributes["list"], "up")', Fails("Order should be either")),
    ],
    "SliceToMap": [
        ('SliceToMap(attributes["pairs"], ["k"], ["v"])', {"x": 1, "y": 2}),
        ('SliceToMap(attributes["list"])', {"0": 3, "1": 1, "2": 2}),
        ('SliceToMap(attributes["pairs"], ["z"])', Fails("does not contain the path [z]")),
        ('SliceToMap(attributes["list"], ["k"])', Fails("could not cast element of type `Int` to a map")),
    ],
    "Keys": [('Keys(attributes["map"])', ["a", "b"]), ("Keys({})", []), ('Keys(attributes["list"])', NO_MAP)],
    "Values": [
        ('Values(attributes["map"])', [1, {"c": "x"}]),
        ("Values({})", []),
        ('Values(attributes["list"])', NO_MAP),
    ],
    "ToKeyValueString": [
        ('ToKeyValueString(attributes["map"])', 'a=1 b={\\"c\\":\\"x\\"}'),
        ('ToKeyValueString({"b": "x y", "a": ""}, "=", " ", true)', 'a= b="x y"'),
        ('ToKeyValueString(attributes["map"], "=", "=")', Fails("cannot be equal")),
    ],
    # Time.
    "Time": [
        (TIME, Time(INSTANT)),
        ('Time("Feb  3 2023 4:05:06 PM -0500", "%b %d %Y %I:%M:%S %p %z")', Time(1_675_458_306_000_000_000)),
        ('Time("25 février 2002", "%d %B %Y", "UTC", "fr")', Time(1_014_595_200_000_000_000)),
        ('Time("2023-13-01", "%Y-%m-%d")', Fails("month out of range")),
        ('Time("x", "%Q")', Fails("unsupported ctimefmt.toNative() directive: %Q")),
        ('Time("x", "%Y", "Jupiter/Ganymede")', Fails("unknown time zone Jupiter/Ganymede")),
        ('Time("x", "%Y", "UTC", "xx-XX")', Fails("unsupported locale 'xx-XX'")),
    ],
    "FormatTime": [
        (f'FormatTime({TIME}, "%A %e %b %y, %I:%M %p .%L %z")', "Thursday 29 Feb 24, 01:04 PM .123 Z"),
        (f'FormatTime({TIME}, "%%%n")', "%\n"),
        (f'FormatTime({TIME}, "%5")', Fails("should not contain decimals")),
        ('FormatTime(attributes["text"], "%Y")', NO_TIME),
    ],
    "TruncateTime": [
        (f'UnixNano(TruncateTime({TIME}, Duration("1h")))', INSTANT // (3600 * 10**9) * 3600 * 10**9),
        (f'UnixNano(TruncateTime({TIME}, Duration("-1s")))', INSTANT),
        (f'TruncateTime({TIME}, attributes["text"])', NO_DURATION),
    ],
    "Unix": [
        ("UnixNano(Unix(5, 7))", 5_000_000_007),
        ("UnixNano(Unix(-1))", -1_000_000_000),
        ('Unix("5")', Fails("expected int64 but got string")),
    ],
    "UnixNano": [(f"UnixNano({TIME})", INSTANT), ("UnixNano(Unix(0))", 0), ('UnixNano(attributes["number"])', NO_TIME)],
    "UnixMicro": [
        (f"UnixMicro({TIME})", INSTANT // 1000),
        ("UnixMicro(Unix(-1))", -1_000_000),
        ("UnixMicro(1)", NO_TIME),
    ],
    "UnixMilli": [(f"UnixMilli({TIME})", INSTANT // 10**6), ("UnixMilli(Unix(0))", 0), ("UnixMilli(1)", NO_TIME)],
    "UnixSeconds": [
        (f"UnixSeconds({TIME})", INSTANT // 10**9),
        ("UnixSeconds(Unix(0))", 0),
        ("UnixSeconds(1)", NO_TIME),
    ],
    "Year": [(f"Year({TIME})", 2024), ("Year(Unix(-1))", 1969), ("Year(1)", NO_TIME)],
    "Month": [(f"Month({TIME})", 2), ("Month(Unix(-1))", 12), ("Month(1)", NO_TIME)],
    "Day": [(f"Day({TIME})", 29), ("Day(Unix(-1))", 31), ("Day(1)", NO_TIME)],
    "Weekday": [(f"Weekday({TIME})", 4), ("Weekday(Unix(259200))", 0), ("Weekday(1)", NO_TIME)],
    "Hour": [(f"Hour({TIME})", 13), ("Hour(Unix(-1))", 23), ("Hour(1)", NO_TIME)],
    "Minute": [(f"Minute({TIME})", 4), ("Minute(Unix(-1))", 59), ("Minute(1)", NO_TIME)],
    "Second": [(f"Second({TIME})", 5), ("Second(Unix(-1))", 59), ("Second(1)", NO_TIME)],
    "Nanosecond": [(f"Nanosecond({TIME})", 123_456_789), ("Nanosecond(Unix(0))", 0), ("Nanosecond(1)", NO_TIME)],
    "Duration": [
        ('Duration("1h2m3.5s")', Duration(3_723_500_000_000)),
        ('Duration("-1.5us")', Duration(-1500)),
        ('Duration("0")', Duration(0)),
        ('Duration("1")', Fails("missing unit in duration")),
        ('Duration("1y")', Fails("unknown unit")),
        ('Duration("")', Fails("invalid duration")),
        ('Duration("9999999h")', Fails("invalid duration")),
    ],
    "Nanoseconds": [
        ('Nanoseconds(Duration("1us"))', 1000),
        ('Nanoseconds(Duration("0s"))', 0),
        ("Nanoseconds(1)", NO_DURATION),
    ],
    "Microseconds": [
        ('Microseconds(Duration("1ms"))', 1000),
        ('Microseconds(Duration("-1500ns"))', -1),
        ("Microseconds(1)", NO_DURATION),
    ],
    "Milliseconds": [
        ('Milliseconds(Duration("1s"))', 1000),
        ('Milliseconds(Duration("999us"))', 0),
        ("Milliseconds(1)", NO_DURATION),
    ],
    "Seconds": [('Seconds(Duration("90s"))', 90.0), ('Seconds(Duration("-1ms"))', -0.001), ("Seconds(1)", NO_DURATION)],
    "Minutes": [('Minutes(Duration("90s"))', 1.5), ('Minutes(Duration("0s"))', 0.0), ("Minutes(1)", NO_DURATION)],
    "Hours": [('Hours(Duration("90m"))', 1.5), ('Hours(Duration("0s"))', 0.0), ("Hours(1)", NO_DURATION)],
    # Encodings and hashes.
    "Base64Encode": [
        ('Base64Encode("a?>")', "YT8+"),
        ('Base64Encode("a?>x", "base64-raw-url")', "YT8-eA"),
        ('Base64Encode("a", "base32")', Fails("unsupported base64 variant: base32")),
    ],
    "Base64Decode": [
        ('Base64Decode("aGk=")', "hi"),
        ('Base64Decode("")', ""),
        ('Base64Decode("aGk")', Fails("illegal base64 data at input byte 3")),
    ],
    "Decode": [
        ('Decode("aGk=", "base64")', "hi"),
        ('Decode(attributes["bytes"], "iso-8859-1")', "\x01ÿ"),
        ('Decode(attributes["bytes"], "utf-8")', "\x01\ufffd"),
        ('Decode("a", "rot13")', Fails("unsupported encoding 'rot13'")),
        ('Decode("a", "GB2312")', Fails("no charmap defined for encoding 'GB2312'")),
        ('Decode(attributes["number"], "utf-8")', Fails("unsupported type provided to Decode function")),
    ],
    "Hex": [
        ('Hex("hi")', "6869"),
        ("Hex(1)", "0000000000000001"),
        ('Hex(attributes["none"])', ""),
        ('Hex(attributes["list"])', Fails("unsupported type")),
    ],
    "FNV": [
        ('FNV("hello world")', 8618312879776256743),
        ('FNV("")', -3750763034362895579),
        ('FNV(attributes["number"])', WRONG),
    ],
    "MD5": [
        ('MD5("hello world")', "5eb63bbbe01eeed093cb22bb8f5acdc3"),
        ('MD5("")', "d41d8cd98f00b204e9800998ecf8427e"),
        ("MD5(nil)", WRONG),
    ],
    "SHA1": [
        ('SHA1("hello world")', "2aae6c35c94fcfb415dbe95f408b9ce91ee846ed"),
        ('SHA1("")', "da39a3ee5e6b4b0d3255bfef95601890afd80709"),
        ("SHA1(nil)", WRONG),
    ],
    "SHA256": [
        ('SHA256("hello world")', "b94d27b9934d3e08a52e52d7da7dabfac484efe37a5380ee9088f7ace2efcde9"),
        ('SHA256("")', "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        ("SHA256(1)", WRONG),
    ],
    "SHA512": [
        ('Substring(SHA512("foo bar"), 0, 16)', "65019286222ace41"),
        ('Len(SHA512(""))', 128),
        ("SHA512(1)", WRONG),
    ],
    "Murmur3Hash": [
        ('Murmur3Hash("Hello World")', "ce837619"),
        ('Murmur3Hash("")', "00000000"),
        ("Murmur3Hash(1)", WRONG),
    ],
    "Murmur3Hash128": [
        ('Murmur3Hash128("Hello World")', "dbc2a0c1ab26631a27b4c09fcf1fe683"),
        ('Murmur3Hash128("")', "00000000000000000000000000000000"),
        ("Murmur3Hash128(1)", WRONG),
    ],
    "XXH3": [('XXH3("hello world")', "d447b1ea40e6988b"), ('XXH3("")', "2d06800538d394c2"), ("XXH3(1)", WRONG)],
    "XXH128": [
        ('XXH128("hello world")', "df8d09e93f874900a99b8775cc15b6c7"),
        ('XXH128("")', "99aa06d3014798d86001c324468d497f"),
        ("XXH128(1)", WRONG),
    ],
    # Identities and networks.
    "TraceID": [
        ('TraceID("0102030405060708090a0b0c0d0e0f10")', TraceID(range(1, 17))),
        ("TraceID(0x0102030405060708090a0b0c0d0e0f10)", TraceID(range(1, 17))),
        ('TraceID("01")', Fails("invalid length: expected 16 or 32 bytes, got 2")),
    ],
    "SpanID": [
        ("SpanID(0x0102030405060708)", SpanID(range(1, 9))),
        ('SpanID("0102030405060708")', SpanID(range(1, 9))),
        ('SpanID("zz02030405060708")', Fails("invalid hex")),
    ],
    "ProfileID": [
        ("ProfileID(0x0102030405060708090a0b0c0d0e0f10)", ProfileID(range(1, 17))),
        ('ProfileID("0102030405060708090a0b0c0d0e0f10")', ProfileID(range(1, 17))),
        ('ProfileID(attributes["bytes"])', Fails("got 2")),
    ],
    "CommunityID": [
        ('CommunityID("128.232.110.120", 34855, "66.35.250.204", 80, "TCP")', "1:LQU9qZlK+B5F3KDmev6m5PMibrg="),
        ('CommunityID("66.35.250.204", 80, "128.232.110.120", 34855)', "1:LQU9qZlK+B5F3KDmev6m5PMibrg="),
        ('CommunityID("x", 1, "10.0.0.1", 2)', Fails("invalid source IP: x")),
        ('CommunityID("10.0.0.1", 1, "10.0.0.1", 70000)', Fails("destination port must be between")),
    ],
    "IsInCIDR": [
        ('IsInCIDR("10.1.2.3", ["192.168.0.0/16", "10.0.0.0/8"])', True),
        ('IsInCIDR("::ffff:10.1.2.3", [attributes["network"]])', True),
        ('IsInCIDR("not an address", ["10.0.0.0/8"])', False),
        ('IsInCIDR("10.1.2.3", ["10.0.0.0"])', Fails("invalid CIDR address: 10.0.0.0")),
    ],
}

#: Converters whose value cannot be written down: they have tests of their own below.
APART = {"Now", "UUID", "UUIDv7", "UserAgent", "IsRootSpan"}


def evaluate(expression: str, context: str = "log", item: dict[str, Any] | None = None) -> Any:
    """The value of an expression on a record with `ATTRIBUTES`."""
    record = {"attributes": dict(ATTRIBUTES)} if item is None else item
    return compile_value_expression(expression, context)(Context({"attributes": {}}, {}, record))


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    from tracecore.ottl.functions import zones

    monkeypatch.setattr(zones, "local_zone", lambda: zones.UTC)


CASES = [pytest.param(expression, wanted, id=expression[:80]) for rows in ROWS.values() for expression, wanted in rows]


@pytest.mark.parametrize(("expression", "wanted"), CASES)
def test_converter(expression: str, wanted: Any) -> None:
    if isinstance(wanted, Fails):
        with pytest.raises(OttlError, match=re.escape(wanted)):
            evaluate(expression)
    else:
        actual = evaluate(expression)
        assert deep_equal(actual, wanted), actual


def test_every_converter_has_a_row_that_works_and_one_that_fails() -> None:
    names = {name for name in declared(functions.MODULES) if name[0].isupper()}
    assert names - APART == set(ROWS)
    for name, rows in ROWS.items():
        failing = sum(isinstance(wanted, Fails) for _, wanted in rows)
        assert failing >= 1, name
        assert len(rows) - failing >= 2, name
        assert all(name in expression for expression, _ in rows), name


def test_now_reads_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "source", lambda: INSTANT)
    assert evaluate("Now()") == Time(INSTANT)


def test_a_date_without_a_year_is_of_this_year_or_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "source", lambda: 1_704_164_645_000_000_000)  # 2 January 2024
    assert evaluate('Year(Time("Jan  1 10:00:00", "%b %e %H:%M:%S"))') == 2024
    assert evaluate('Year(Time("Dec 31 10:00:00", "%b %e %H:%M:%S"))') == 2023


def test_uuids_are_new_and_of_their_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "source", lambda: INSTANT)
    first, second = evaluate("UUID()"), evaluate("UUID()")
    assert first != second
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", first)
    seventh = evaluate("UUIDv7()")
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", seventh)
    assert int(seventh.replace("-", "")[:12], 16) == INSTANT // 10**6


def test_user_agent() -> None:
    pytest.importorskip("ua_parser")
    found = evaluate('UserAgent("curl/7.81.0")')
    assert found == {
        "user_agent.name": "curl",
        "user_agent.original": "curl/7.81.0",
        "user_agent.version": "7.81.0",
        "os.name": "Other",
    }
    assert evaluate('UserAgent("")')["user_agent.name"] == "Other"
    with pytest.raises(OttlError, match="expected string"):
        evaluate("UserAgent(1)")


def test_user_agent_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ua_parser", None)
    with pytest.raises(OttlError, match="pip install ua-parser"):
        evaluate('UserAgent("x")')


def test_is_root_span() -> None:
    assert evaluate("IsRootSpan()", "span", {"parent_span_id": ""}) is True
    assert evaluate("IsRootSpan()", "span", {"parent_span_id": "0000000000000000"}) is True
    assert evaluate("IsRootSpan()", "span", {"parent_span_id": "0102030405060708"}) is False
    with pytest.raises(OttlError, match="undefined function"):
        evaluate("IsRootSpan()", "log")


@pytest.mark.parametrize(
    ("expression", "bound"),
    [
        ('ParseJSON(attributes["deep"])', "nests deeper"),
        ('ParseXML(attributes["deep"])', "Excessive depth in document"),
        ('Format("%9999999d", [1])', "BADWIDTH"),
        ('GetXML("<!DOCTYPE a [<!ENTITY x \\"yyyy\\">]><a>&x;</a>", "/a")', "parse xml"),
    ],
)
def test_hostile_input_meets_a_bound(expression: str, bound: str) -> None:
    deep = "<a>" * 5000 + "</a>" * 5000 if "XML" in expression else "[" * 100_000
    try:
        text = evaluate(expression, item={"attributes": {"deep": deep}})
    except OttlError as error:
        text = str(error)
    assert bound in text

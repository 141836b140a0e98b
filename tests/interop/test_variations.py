"""Many small variations of files and container lines, all of them in one Collector and in one agent's receivers."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tracecore.signals.logs.tail.config import FileLogConfig
from tracecore.signals.logs.tail.filelog import FileLog

pytestmark = pytest.mark.interop
HERE = Path(__file__).parent
Step = Callable[[Path], Any]
#: Name: options of the receiver, and what happens: before the start, and then one after the other.
CASES: dict[str, tuple[dict[str, Any], list[Step]]] = {}

POD = "ml_trainer-0_0a1b2c3d-0000-4000-8000-000000000001/main/0.log"
S = "2026-11-15T01:37:04.123456789Z"
LONG = "a line that is the same in all files and makes a fingerprint of its own " * 20


def module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"otelcol_{name}", HERE / "otelcol" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def put(path: str, data: str | bytes) -> Step:
    """Appends to a file."""

    def step(place: Path) -> None:
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        with (place / path).open("ab") as out:
            out.write(data.encode() if isinstance(data, str) else data)

    return step


def all_of(*steps: Step) -> Step:
    def step(place: Path) -> None:
        for one in steps:
            one(place)

    return step


def rename(old: str, new: str) -> Step:
    return lambda place: (place / old).rename(place / new)


def nothing(place: Path) -> None:
    pass


def plain(name: str, *steps: Step, glob: str = "*.log*", **options: Any) -> None:
    CASES[name] = ({"include": [glob], "start_at": "beginning", **options}, list(steps))


def container(name: str, *lines: str | bytes, path: str = POD, steps: list[Step] | None = None, **options: Any) -> None:
    """Lines of a runtime, through the operator with some options."""
    receiver = {key: options.pop(key) for key in list(options) if key in ("include_file_path", "max_log_size")}
    more = options.pop("more", [])
    data = b"".join((line.encode() if isinstance(line, str) else line) + b"\n" for line in lines)
    CASES[name] = (
        {
            "include": ["pods/*/*/*.log*"],
            "start_at": "beginning",
            "include_file_path": True,
            **receiver,
            "operators": [{"type": "container", **options}, *more],
        },
        [put(f"pods/{path}", data), *(steps or [])],
    )


container("crlf", f"{S} stdout F one\r", f"{S} stdout P two \r", f"{S} stdout F three\r")
container(
    "streams between each other",
    f"{S} stdout P a1",
    f"{S} stderr P b1",
    f"{S} stdout F a2",
    f"{S} stderr F b2",
    f"{S} stderr F c",
    f"{S} stdout P d1",
    f"{S} stderr F e",
    f"{S} stdout F d2",
)
container(
    "tags",
    f"{S} stdout P:x one",
    f"{S} stdout F:x two",
    f"{S} stdout  no tag",
    f"{S} stdout p lower",
    f"{S} stdout FP both",
    f"{S} stdout F",
    f"{S} stdout",
    f"{S} stdout F ",
    f"{S}  stdout F two blanks",
    f"{S} stdin F no stream",
    f"{S} STDOUT F upper",
    f"{S}\tstdout\tF\ttabs",
    f"{S} stdout F  led by a blank",
    f"{S} stdout F end ",
)
container(
    "times",
    *(
        f"{stamp} stdout F {number}"
        for number, stamp in enumerate(
            [
                "2026-11-15T01:37:04Z",
                "2026-11-15T01:37:04.1Z",
                "2026-11-15T01:37:04.123Z",
                "2026-11-15T01:37:04.1234567890Z",
                "2026-11-15T01:37:04.123456789012345Z",
                "2026-11-15T01:37:04,5Z",
                "2026-11-15T01:37:04.z",
                "2026-11-15T01:37:04.Z",
                "2026-11-15T24:00:00Z",
                "2026-11-15T23:59:60Z",
                "2026-02-30T00:00:00Z",
                "2024-02-29T00:00:00Z",
                "1969-12-31T23:59:59.5Z",
                "2026-11-15 01:37:04Z",
                "2026-11-15T01:37:04",
                "20261115T013704Z",
                "2026-11-15T1:37:04Z",
                "2026-11-15T01:37:04.5+05:30",
                "2026-11-15T01:37:04.5-10:00",
                "2026-11-15T01:37:04+00:00",
                "2026-11-15T01:37:04.123456789+0530",
                "2026-11-15T01:37:04.5+24:00",
                "2026-11-15T01:37:04.5+14:00",
                "2026-11-15T01:37:04.5+05:60",
                "2026-11-15T01:37:04.5-00:00",
                "x",
                "2262-04-12T00:00:00Z",
                "9999-12-31T23:59:59Z",
            ]
        )
    ),
)
container(
    "docker",
    *(
        json.dumps(entry)
        for entry in [
            {"log": "plain\n", "stream": "stdout", "time": S},
            {"log": "no newline", "stream": "stderr", "time": S},
            {"log": "crlf\r\n", "stream": "stdout", "time": S},
            {"log": "", "stream": "stdout", "time": S},
            {"log": "\n", "stream": "stdout", "time": S},
            {"log": 'tab\t"q" \\ \u2713 \U0001f600 \x00 \x1b[0m', "stream": "stdout", "time": S},
            {"stream": "stdout", "time": S},
            {"log": "no stream", "time": S},
            {"log": "no time", "stream": "stdout"},
            {"log": 5, "stream": "stdout", "time": S},
            {"log": "x", "stream": 1, "time": S},
            {"log": "x", "stream": "stdout", "time": 1},
            {
                "log": "attrs",
                "stream": "stdout",
                "time": S,
                "attrs": {"tag": "t", "n": 1.5, "deep": {"a": [1, None, True]}},
            },
            {"log": "other stream", "stream": "else", "time": S},
            {"log": "offset", "stream": "stdout", "time": "2026-11-15T01:37:04.5+02:00"},
            {"log": "bad time", "stream": "stdout", "time": "yesterday"},
            {"log": None, "stream": "stdout", "time": S},
            {"log": ["list"], "stream": "stdout", "time": S},
            {"log": {"a": 1}, "stream": "stdout", "time": S},
            {},
        ]
    ),
    '{"log":"lone \\ud800 surrogate","stream":"stdout","time":"' + S + '"}',
    '{"log":"twice","log":"second","stream":"stdout","time":"' + S + '"}',
    '{"log":"cut off","stream":"std',
    '{"log":"tail","stream":"stdout","time":"' + S + '"} tail',
    '  {"log":"led by blanks","stream":"stdout","time":"' + S + '"}',
    "[1,2]",
    "{}",
    "{",
    '{"log":"big","stream":"stdout","time":"' + S + '","n":12345678901234567890}',
)
container(
    "docker split lines",
    *(
        json.dumps({"log": text, "stream": stream, "time": S})
        for text, stream in (
            ("one ", "stdout"),
            ("two ", "stdout"),
            ("three\n", "stdout"),
            ("a ", "stderr"),
            ("b\n", "stdout"),
        )
    ),
)
container(
    "empty pieces", f"{S} stdout P ", f"{S} stdout P", f"{S} stdout P one", f"{S} stdout F", f"{S} stdout F after"
)
container(
    "pieces with blanks", f"{S} stdout P one  ", f"{S} stdout P   two", f"{S} stdout F  three ", f"{S} stdout P x"
)
container("many pieces", *(f"{S} stdout P part{n}" for n in range(1100)), f"{S} stdout F end", f"{S} stdout F after")
CASES["many pieces"][0]["operators"][0]["max_log_size"] = 0
container(
    "pieces too long", *(f"{S} stdout P {'x' * 300}{n}" for n in range(12)), f"{S} stdout F end", f"{S} stdout F after"
)
CASES["pieces too long"][0]["operators"][0]["max_log_size"] = 1000
container("pieces of the default size", *(f"{S} stdout P {'y' * 16000}{n}" for n in range(80)), f"{S} stdout F end")
container(
    "piece without an end",
    f"{S} stdout P waits",
    steps=[nothing, nothing, nothing, nothing, put(f"pods/{POD}", f"{S} stdout F late\n")],
)
container(
    "cut by the rotation",
    f"{S} stdout F first",
    steps=[
        put(f"pods/{POD}", f"{S} stdout P begun \n"),
        all_of(
            rename(f"pods/{POD}", f"pods/{POD}.20261115-013705"),
            put(f"pods/{POD}", f"{S} stdout F ended\n{S} stdout F next\n"),
        ),
    ],
)
container(
    "not UTF-8", f"{S} stdout F ".encode() + b"a \xff b \xe2\x82 c \xf0\x9f\x98 d \xed\xa0\x80 e \xc0\xaf f \xf5 g"
)
container("NUL and controls", f"{S} stdout F a\x00b\x01c\x0bd\x0ce\x85f\xa0", f"{S} stdout F \u2028 x \ufeff")
for format in ("docker", "crio", "containerd"):
    container(
        f"only {format}",
        f"{S} stdout F containerd",
        "2026-11-15T01:37:04.5+02:00 stderr F crio",
        "plain text",
        json.dumps({"log": "docker\n", "stream": "stdout", "time": S}),
        f"{S} stdout P cut ",
        f"{S} stdout F in two",
        "2026-11-15T01:37:04.5+02:00 stdout P cut ",
        "2026-11-15T01:37:05.5+02:00 stdout F in two",
        format=format,
    )
for choice in ("send", "drop", "send_quiet", "drop_quiet"):
    container(f"on error {choice}", f"{S} stdout F good", "bad line", '{"log": 1}', on_error=choice)
for number, path in enumerate(
    [
        "kube-system_etcd-node-7_9b1deb4d3b7d4bad9bdd2b0d7b3dcb6d/etcd/3.log",
        "ml_p_UPPER-0A/main/0.log",
        "ml_p_0a-1/side.car/0.log",
        "ml_p_0a-1/side_car/0.log",
        "ml_p_0a-1/main/12.log",
        "ml_p_0a-1/main/0.log.20261115-013705",
        "ml_p_0a-1/main/0.log.1",
        "ml_p_0a-1/main/x.log",
        "noparts/main/0.log",
        "a_b_c_0a-1/main/0.log",
        "ml_p-0.with.dots_0a-1/main/0.log",
        "ml_p_/main/0.log",
    ]
):
    container(f"path {number}", f"{S} stdout F text", "2026-11-15T01:37:04.5+02:00 stdout F text", path=path)
container("no path", f"{S} stdout F text", include_file_path=False)
container("no path wanted", f"{S} stdout F text", include_file_path=False, add_metadata_from_filepath=False)
container("parse to body", f"{S} stdout F text", parse_to="body")
container("parse to a field", f"{S} stdout F text", parse_to="attributes.parsed")
container(
    "severity",
    f"{S} stderr F text",
    f"{S} stdout F text",
    "neither",
    more=[
        {
            "type": "severity_parser",
            "parse_from": 'attributes["log.iostream"]',
            "mapping": {"error": "stderr", "info": "stdout"},
            "if": 'attributes["log.iostream"] != nil',
        }
    ],
)
container(
    "json inside",
    f'{S} stdout F {{"level":"warn","msg":"x","n":1}}',
    f"{S} stdout F text",
    f'{S} stdout P {{"level":',
    f'{S} stdout F "info"}}',
    more=[
        {
            "type": "json_parser",
            "if": 'body matches "^{"',
            "parse_to": "attributes.j",
            "severity": {"parse_from": "attributes.j.level"},
        }
    ],
)
container(
    "recombined after",
    f"{S} stdout F Traceback:",
    f"{S} stdout F   File",
    f"{S} stdout F Error",
    f"{S} stdout F next",
    more=[
        {
            "type": "recombine",
            "combine_field": "body",
            "is_first_entry": 'body matches "^[^\\\\s]"',
            "force_flush_period": "1s",
        }
    ],
)
container("long line", f"{S} stdout F {'z' * 3000}", f"{S} stdout F after", max_log_size=1024)

plain("crlf lines", put("a.log", "one\r\ntwo\r\n\r\nthree\r"), put("a.log", "\nfour\r\n"))
plain("blanks", put("a.log", " \t\n\x0b x \x0c\n\xa0y\xa0\n\x00z\x00\n  a  \n"))
plain("no end", put("a.log", "one\ntwo"), nothing, put("a.log", " more\nthree"), nothing, put("a.log", "\n"))
plain("no end and no flush", put("a.log", "one\ntwo"), nothing, put("a.log", " more\nthree"), force_flush_period="0s")
plain(
    "from the end",
    put("a.log", "old\nold without end"),
    put("a.log", " goes on\nnew\n"),
    put("b.log", "b1\n"),
    start_at="end",
)
plain("grows past the fingerprint", put("a.log", "x" * 500 + "\n"), put("a.log", "y" * 700 + "\n"), put("a.log", "z\n"))
plain(
    "shrinks",
    put("a.log", "one\ntwo\nthree\n"),
    lambda p: os.truncate(p / "a.log", 4),
    put("a.log", "four\nfive and more text\n"),
)
for choice in ("ignore", "read_whole_file", "read_new"):
    plain(
        f"shrinks and {choice}",
        put("a.log", LONG + "\none\ntwo\n"),
        lambda p: os.truncate(p / "a.log", len(LONG) + 5),
        put("a.log", "three\n"),
        on_truncate=choice,
    )
plain(
    "truncated to nothing",
    put("a.log", "one\ntwo\n"),
    lambda p: os.truncate(p / "a.log", 0),
    put("a.log", "three\n"),
    put("a.log", "four\n"),
)
plain(
    "truncated and written again",
    put("a.log", "one\ntwo\n"),
    all_of(lambda p: os.truncate(p / "a.log", 0), put("a.log", "other\nlines\n")),
)
plain(
    "deleted and made again",
    put("a.log", "one\n"),
    all_of(lambda p: (p / "a.log").unlink(), put("a.log", "two\nthree\n")),
    all_of(lambda p: (p / "a.log").unlink(), put("a.log", "four\n")),
    nothing,
)
plain(
    "moved twice",
    put("a.log", "one\n"),
    all_of(rename("a.log", "a.log.1"), put("a.log", "two\n")),
    all_of(rename("a.log.1", "a.log.2"), rename("a.log", "a.log.1"), put("a.log", "three\n"), put("a.log.1", "late\n")),
)
plain(
    "moved out of sight",
    put("a.log", "one\n"),
    all_of(rename("a.log", "away"), put("away", "after\n"), put("a.log", "two\n")),
    glob="*.log",
)
plain(
    "copied and truncated",
    put("a.log", "one\ntwo\n" + LONG + "\n"),
    all_of(
        put("a.log", "unread\n"),
        lambda p: (p / "a.log.1").write_bytes((p / "a.log").read_bytes()),
        lambda p: os.truncate(p / "a.log", 0),
        put("a.log", "other\n"),
    ),
    put("a.log", "more\n"),
)
plain(
    "compressed",
    put("a.log", LONG + "\none\n"),
    all_of(
        put("a.log", "two\n"),
        lambda p: (p / "a.log.gz").write_bytes(gzip.compress((p / "a.log").read_bytes())),
        lambda p: (p / "a.log").unlink(),
    ),
    put("a.log", "new\n"),
    compression="auto",
)
plain(
    "compressed and added to",
    put("a.log", gzip.compress(b"one\ntwo\n")),
    put("a.log", gzip.compress(b"three\n")),
    compression="gzip",
)
plain(
    "a link",
    all_of(put("t", "behind\n"), lambda p: (p / "l.log").symlink_to(p / "t")),
    put("t", "more\n"),
    all_of(put("u", "other\n"), lambda p: (p / "l.log").unlink(), lambda p: (p / "l.log").symlink_to(p / "u")),
    glob="*.log",
    include_file_path=True,
    include_file_path_resolved=True,
    include_file_name_resolved=True,
)
plain("a link to nothing", lambda p: (p / "l.log").symlink_to(p / "t"), put("t", "came late\n"), glob="*.log")
plain("a link to itself", lambda p: (p / "l.log").symlink_to(p / "l.log"), put("a.log", "one\n"), glob="*.log")
plain(
    "numbers and places",
    put("a.log", "one\n\n  two\nthree"),
    put("a.log", "\nfour\n"),
    include_file_record_number=True,
    include_file_record_offset=True,
)
plain("deep", put("x/y/a.log", "one\n"), put("x/y/z/b.log", "two\n"), put("c.log", "three\n"), glob="**/*.log")
plain("braces", *(put(f"{n}.log", f"{n}\n") for n in "abc"), glob="{a,b}.log")
plain("brackets", *(put(f"{n}.log", f"{n}\n") for n in "abc"), glob="[a-b].log")
plain("not these", *(put(f"{n}.log", f"{n}\n") for n in "abc"), exclude=["b*"])
plain("split", put("a.log", "x" * 25 + "\n" + "y" * 10 + "\n" + "z" * 11 + "\r\nü" * 7 + "\nshort\n"), max_log_size=10)
plain("split without an end", put("a.log", "x" * 25), put("a.log", "y" * 8), put("a.log", "\nend\n"), max_log_size=10)
plain(
    "cut off",
    put("a.log", "x" * 25 + "\n" + "y" * 10 + "\nshort\n"),
    put("a.log", "z" * 40 + "\nend\n"),
    max_log_size=10,
    max_log_size_behavior="truncate",
)
plain("a line of megabytes", put("a.log", "x" * (5 << 19) + "\nafter\n"))
STACK = "2026 one\n  at a\n  at b\n2026 two\n2026 three\n  at c\n"
plain(
    "starts",
    put("a.log", STACK),
    nothing,
    put("a.log", "  at d\n2026 four\n"),
    multiline={"line_start_pattern": r"^\d{4}"},
)
plain(
    "starts left out",
    put("a.log", STACK),
    nothing,
    put("a.log", "2026 five\n"),
    multiline={"line_start_pattern": r"\d{4} ", "omit_pattern": True},
)
plain("starts not at the beginning", put("a.log", "no start\n" + STACK), multiline={"line_start_pattern": r"^\d{4}"})
plain("starts with crlf", put("a.log", STACK.replace("\n", "\r\n")), multiline={"line_start_pattern": r"^\d{4}"})
plain(
    "ends",
    put("a.log", "one\ntwo;\nthree;four;\nfive"),
    nothing,
    put("a.log", "six;\n"),
    multiline={"line_end_pattern": ";\n"},
)
plain(
    "ends left out",
    put("a.log", "one;two;;three"),
    nothing,
    put("a.log", ";four"),
    multiline={"line_end_pattern": ";", "omit_pattern": True},
)
plain("ends at line ends", put("a.log", "one\ntwo END\nthree\nfour END\n"), multiline={"line_end_pattern": "END$"})
plain(
    "starts too long",
    put("a.log", "2026 " + "x" * 40 + "\n2026 b\n"),
    multiline={"line_start_pattern": r"^\d{4}"},
    max_log_size=20,
)
plain(
    "starts and no flush",
    put("a.log", STACK),
    put("a.log", "2026 end\n"),
    multiline={"line_start_pattern": r"^\d{4}"},
    force_flush_period="0s",
)
for name in ("utf-16le", "utf-16be", "utf-16"):
    codec = "utf-16-be" if name == "utf-16be" else "utf-16-le"
    plain(
        f"encoded in {name}",
        put("a.log", "grün ✓\r\nzwei 😀\n\n  x  \nend".encode(codec)),
        nothing,
        put("a.log", "\nmore\n".encode(codec)),
        encoding=name,
    )
for name, text in (
    ("latin1", "grün\nzwei\n"),
    ("big5", "模型\n二\n"),
    ("shift_jis", "日本\n語\n"),
    ("gbk", "模型\n二\n"),
    ("windows-1252", "€uro\nx\n"),
    ("euc-kr", "한국\nx\n"),
):
    plain(f"encoded in {name}", put("a.log", text.encode(name.replace("windows-", "cp"))), encoding=name)
plain("as it is", put("a.log", b"a\nb\xff\x00c\n"), put("a.log", b"d\n"), encoding="nop")
plain("raw", put("a.log", b"a\xffb \xe2\x82\nc\n"), encoding="utf-8-raw")
plain("ascii", put("a.log", "grün\nx\n"), encoding="ascii")
plain(
    "blanks kept",
    put("a.log", "  a  \n\n \n\tb\t\nend  "),
    nothing,
    preserve_leading_whitespaces=True,
    preserve_trailing_whitespaces=True,
)
plain(
    "newest of some",
    *(put(f"r-{n}.log", f"{n}\n") for n in (3, 1, 2)),
    glob="r-*.log",
    ordering_criteria={
        "regex": r"r-(?P<n>\d+)\.log",
        "top_n": 2,
        "sort_by": [{"sort_type": "numeric", "regex_key": "n"}],
    },
)
plain(
    "many short files",
    all_of(*(put(f"{n}.log", f"file {n}\n") for n in range(60))),
    all_of(*(put(f"{n}.log", f"more {n}\n") for n in range(60))),
)
plain(
    "words of a file",
    put("a.log", "x\n"),
    include_file_name=True,
    include_file_path=True,
    include_file_permissions=True,
    include_file_owner_name=True,
    include_file_owner_group_name=True,
    attributes={"a": "b"},
    resource={"r": "s"},
)
plain(
    "one file at a time",
    all_of(*(put(f"{n}.log", f"file {n}\n" * 3) for n in range(9))),
    all_of(*(put(f"{n}.log", f"more {n}\n") for n in range(9))),
    max_concurrent_files=2,
)


def copy_truncate(old: str, new: str) -> Step:
    def step(place: Path) -> None:
        (place / new).write_bytes((place / old).read_bytes())
        os.truncate(place / old, 0)

    return step


# Files under several names, with odd names, and put in the place of others.
plain("equal from the start", all_of(put("a.log", "same\n"), put("b.log", "same\n")), put("a.log", "more of a\n"))
plain(
    "equal in two places",
    nothing,
    all_of(put("c/x.log", "same\n"), put("d/x.log", "same\n")),
    put("d/x.log", "more\n"),
    glob="*/*.log",
)
plain("equal, but later", put("a.log", "same\n"), put("b.log", "same\n"), put("b.log", "more of b\n"))
plain("odd names", put("with blank ü.log", "one\n"), put("a[1].log", "two\n"), put("{b}.log", "three\n"))
plain("a directory by that name", all_of(lambda p: (p / "d.log").mkdir(), put("a.log", "one\n")))
plain(
    "put in its place",
    put("a.log", "one\n"),
    all_of(put("new", "two\nthree\n"), rename("new", "a.log")),
    put("a.log", "four\n"),
    glob="*.log",
)
plain(
    "put in its place with the same beginning",
    put("a.log", "header\none\n"),
    all_of(put("new", "header\ntwo\n"), rename("new", "a.log")),
    put("a.log", "three\n"),
    glob="*.log",
)
plain(
    "made again with the same beginning",
    put("a.log", LONG + "\none\n"),
    all_of(lambda p: (p / "a.log").unlink(), put("a.log", LONG + "\none\ntwo\n")),
)
plain("empty at first", put("a.log", ""), put("a.log", "one\n"), put("b.log", ""), put("b.log", "two\n"))
plain("a mark of the byte order", put("a.log", b"\xef\xbb\xbfone\ntwo\n"))
plain(
    "copied and truncated twice",
    put("a.log", "one\n" + LONG + "1\n"),
    all_of(copy_truncate("a.log", "a.log.1"), put("a.log", "two\n" + LONG + "2\n")),
    all_of(rename("a.log.1", "a.log.2"), copy_truncate("a.log", "a.log.1"), put("a.log", "three\n")),
    put("a.log", "four\n"),
)
plain(
    "short, copied and truncated",
    put("a.log", "one\n"),
    all_of(copy_truncate("a.log", "a.log.1"), put("a.log", "two\n")),
    all_of(rename("a.log.1", "a.log.2"), copy_truncate("a.log", "a.log.1"), put("a.log", "three\n")),
)
for size in (16, 1000, 5000):
    plain(
        f"known by {size} bytes",
        put("a.log", "x" * 999 + "\n"),
        put("a.log", "second line that goes on\n" * 200),
        all_of(rename("a.log", "a.log.1"), put("a.log", "y\n")),
        fingerprint_size=size,
    )
plain(
    "deleted with its directory",
    put("d/a.log", "one\n"),
    all_of(put("d/a.log", "two\n"), lambda p: (p / "d" / "a.log").rename(p / "gone"), lambda p: (p / "d").rmdir()),
    put("d/a.log", "three\n"),
    glob="*/*.log",
)
# Larger than what is read at once: what lies on a border.
ROWS = "".join(f"row {n} " + "x" * (n % 97) + "\n" for n in range(9000))
plain("large", put("a.log", ROWS))
plain("large with crlf", put("a.log", ROWS.replace("\n", "\r\n")))
plain("large in utf-16", put("a.log", ROWS.encode("utf-16-le")), encoding="utf-16le")
plain(
    "large with starts", put("a.log", ROWS.replace("row", "20 row")), multiline={"line_start_pattern": "^20 row \\d*0 "}
)
plain("large with ends", put("a.log", ROWS), multiline={"line_end_pattern": "7 x*\n"})
plain("large with umlauts", put("a.log", ROWS.replace("x", "ü✓")))
plain("large in pieces", put("a.log", "z" * 700_000 + "\n" + "y" * 300_000 + "\nend\n"), max_log_size=100_000)
plain("large and compressed", put("a.log", gzip.compress(ROWS.encode())), compression="gzip")
container("large pod", *(f"{S} stdout {'P' if n % 5 == 0 else 'F'} row {n} " + "x" * (n % 97) for n in range(6000)))
container(
    "rotated in pieces",
    *(f"{S} stdout F first {n}" for n in range(30)),
    steps=[
        put(f"pods/{POD}", f"{S} stdout P one "),
        put(f"pods/{POD}", f"\n{S} stdout P two \n"),
        all_of(
            rename(f"pods/{POD}", f"pods/{POD}.20261115-013705"),
            put(f"pods/{POD}.20261115-013705", f"{S} stdout F three in the old file\n"),
            put(f"pods/{POD}", f"{S} stdout F new\n"),
        ),
        put(f"pods/{POD}", f"{S} stderr P other \n{S} stderr F stream\n"),
    ],
)
container(
    "runtime changes",
    f"{S} stdout F containerd",
    json.dumps({"log": "docker\n", "stream": "stdout", "time": S}),
    "2026-11-15T01:37:04.5+02:00 stdout P crio ",
    json.dumps({"log": "docker between\n", "stream": "stdout", "time": S}),
    "2026-11-15T01:37:05.5+02:00 stdout F ends",
    f"{S} stdout P containerd ",
    "2026-11-15T01:37:05.5+02:00 stdout F ends as crio",
)
container(
    "moved and removed after",
    f"{S} stderr F text",
    f"{S} stdout F text",
    more=[
        {"type": "move", "from": 'attributes["log.iostream"]', "to": "attributes.stream"},
        {"type": "remove", "field": "attributes.logtag"},
        {"type": "add", "field": "resource.cluster", "value": "c1"},
        {"type": "filter", "expr": 'attributes.stream == "stdout"'},
    ],
)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Counter[Any], Counter[Any]]]:
    """What came out of the Collector and of us, by case."""
    program = module("build").collector()
    if isinstance(program, str):
        pytest.skip(program)
    records = module("records")
    base = tmp_path_factory.mktemp("variations")
    places = {name: base / f"{number:03d}" for number, name in enumerate(CASES)}
    receivers, exporters, pipelines = {}, {}, {}
    logs: dict[str, FileLog] = {}
    ours: dict[str, list[Any]] = {name: [] for name in CASES}
    for name, (options, steps) in CASES.items():
        place = places[name]
        place.mkdir()
        steps[0](place)
        told = {**options}
        for key in ("include", "exclude"):
            if key in told:
                told[key] = [str(place / pattern) for pattern in told[key]]
        receivers[f"filelog/{place.name}"] = told
        exporters[f"file/{place.name}"] = {"path": str(base / f"{place.name}.json")}
        pipelines[f"logs/{place.name}"] = {"receivers": [f"filelog/{place.name}"], "exporters": [f"file/{place.name}"]}
        if isinstance(told.get("force_flush_period"), str):
            told = {**told, "force_flush_period": int(told["force_flush_period"][:-1]) * 1_000_000_000}
        config = msgspec.json.decode(msgspec.json.encode(told), type=FileLogConfig)
        assert list(config.check()) == [], name
        logs[name] = FileLog(config, None, time.time_ns)
    config_path = base / "config.json"
    telemetry = {"metrics": {"level": "none"}, "logs": {"level": "fatal"}}
    service = {"telemetry": telemetry, "pipelines": pipelines}
    config_path.write_text(json.dumps({"receivers": receivers, "exporters": exporters, "service": service}))
    with (base / "collector.log").open("wb") as log:
        process = subprocess.Popen([program, "--config", f"file:{config_path}"], stdout=log, stderr=log)

    def wait(seconds: float) -> None:
        end = time.monotonic() + seconds
        looks = 0
        while time.monotonic() < end or looks < 12:
            looks += 1
            for name, one in logs.items():
                ours[name] += [records.shown(r, record) for batch in one.poll() for r, record in batch.records()]
            assert process.poll() is None, (base / "collector.log").read_text()[-3000:]
            time.sleep(0.1)

    try:
        wait(6)
        for number in range(1, max(len(steps) for _, steps in CASES.values())):
            for name, (_, steps) in CASES.items():
                if number < len(steps):
                    steps[number](places[name])
            wait(2.5)
        wait(7)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    found = {}
    for name, one in logs.items():
        ours[name] += [records.shown(r, record) for batch in one.drain() for r, record in batch.records()]
        one.close()
        out = base / f"{places[name].name}.json"
        found[name] = (Counter(records.theirs(out) if out.exists() else ()), Counter(ours[name]))
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_same_records(outcome: dict[str, tuple[Counter[Any], Counter[Any]]], name: str) -> None:
    want, got = outcome[name]
    extra, missing = sorted((got - want).elements()), sorted((want - got).elements())
    assert not extra and not missing, "\n".join(  # noqa: PT018
        ["", *(f"only ours: {record}" for record in extra), *(f"only theirs: {record}" for record in missing)]
    )

"""The same files, read by the OpenTelemetry Collector and by us at the same time: the same records come out."""

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

import pytest

from tracecore.signals.logs.tail.config import FileLogConfig
from tracecore.signals.logs.tail.filelog import FileLog

pytestmark = pytest.mark.interop
HERE = Path(__file__).parent
STAMP = "2026-11-15T01:37:04.{:09d}Z"
Record = tuple[str, ...]


def module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"otelcol_{name}", HERE / "otelcol" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


records = module("records")
shown, theirs = records.shown, records.theirs


@pytest.fixture(scope="module")
def collector() -> Path:
    found = module("build").collector()
    if isinstance(found, str):
        pytest.skip(found)
    return Path(found)


class Both:
    """The Collector and our receiver, side by side over one directory."""

    def __init__(self, collector: Path, place: Path, options: dict[str, Any]) -> None:
        self._out = place / "out.json"
        self._ours: list[Record] = []
        config = {
            "receivers": {"filelog": options},
            "exporters": {"file": {"path": str(self._out)}},
            "service": {
                "telemetry": {"metrics": {"level": "none"}, "logs": {"level": "error"}},
                "pipelines": {"logs": {"receivers": ["filelog"], "exporters": ["file"]}},
            },
        }
        (place / "config.json").write_text(json.dumps(config))
        self._process = subprocess.Popen(
            [collector, "--config", f"file:{place / 'config.json'}"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        import msgspec

        plain = msgspec.json.encode({k: v for k, v in options.items() if k != "poll_interval"})
        made = msgspec.json.decode(plain, type=FileLogConfig)
        assert list(made.check()) == []
        self._log = FileLog(made, None, time.time_ns)
        time.sleep(1.5)

    def wait(self, seconds: float = 1.2) -> None:
        """Lets both read."""
        end = time.monotonic() + seconds
        while time.monotonic() < end or self._log.more:
            self._poll()
            time.sleep(0.05)

    def _poll(self) -> None:
        for batch in self._log.poll():
            self._ours += [shown(resource, record) for resource, record in batch.records()]

    def stop(self) -> tuple[Counter[Record], Counter[Record]]:
        """What the Collector gave, and what we gave."""
        self.wait()
        self._ours += [shown(r, record) for batch in self._log.drain() for r, record in batch.records()]
        self._log.close()
        self._process.send_signal(signal.SIGTERM)
        _, errors = self._process.communicate(timeout=20)
        assert self._out.exists(), errors.decode()[-2000:]
        return Counter(theirs(self._out)), Counter(self._ours)


@pytest.fixture
def both(collector: Path, tmp_path: Path) -> Callable[..., Both]:
    def make(**options: Any) -> Both:
        return Both(collector, tmp_path, options)

    return make


def pod(tmp_path: Path, name: str = "trainer-0", restart: int = 0) -> Path:
    path = tmp_path / "pods" / f"ml_{name}_0a1b2c3d-0000-4000-8000-00000000000{restart}" / "worker" / f"{restart}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def line(number: int, text: str, stream: str = "stdout", tag: str = "F") -> str:
    return f"{STAMP.format(number)} {stream} {tag} {text}\n"


SEED = {
    "start_at": "beginning",
    "include_file_path": True,
    "include_file_name": False,
    "operators": [
        {"id": "container-parser", "type": "container", "add_metadata_from_filepath": True},
        {
            "id": "severity-parser", "type": "severity_parser", "parse_from": "attributes.stream",
            "mapping": {"error": "stderr", "info": "stdout"}, "if": "attributes.stream != nil",
        },
    ],
}  # fmt: skip


def test_a_tree_of_pods_with_rotation_in_the_middle(both: Callable[..., Both], tmp_path: Path) -> None:
    logs = [pod(tmp_path, f"trainer-{n}") for n in range(3)]
    for n, log in enumerate(logs):
        log.write_text("".join(line(i, f"rank {n} step {i}", "stderr" if i % 7 == 0 else "stdout") for i in range(500)))
    run = both(include=[str(tmp_path / "pods/*/*/*.log")], exclude=[str(tmp_path / "pods/*/tracecore/*.log")], **SEED)
    run.wait()
    for n, log in enumerate(logs):
        with log.open("a") as out:
            out.write(
                line(900, "a line that is ", tag="P") + line(901, "cut in ", tag="P") + line(902, "three", tag="F")
            )
            out.write(line(903, "  indented \t  "))
            out.write(line(904, ""))
            out.write("no line of the runtime\n\n   \n")
            out.write(line(905, "tagged", tag="F:x") + line(906, "after"))
            out.write(line(907, "naïve ✓ 模型"))
            out.write(f'{{"log":"docker line {n}\\n","stream":"stderr","time":"2026-11-15T01:37:05.5Z"}}\n')
            out.write('{"log":"labels","stream":"stdout","time":"2026-11-15T01:37:05.5Z","attrs":{"a":"b","n":1}}\n')
            out.write('{"log":"no time","stream":"stdout"}\n{"broken\n')
            out.write("2026-11-15T01:37:05.123456+02:00 stdout F crio\n2026-11-15T01:37:05Z stdout F whole second\n")
            out.write("2026-13-15T01:37:05.1Z stdout F no such month\n2026-11-15T01:37:05.1Z stdout\n")
    run.wait()
    for log in logs:
        rotated = log.with_name(log.name + ".20261115-013705")
        with log.open("a") as out:
            log.rename(rotated)
            log.write_text(line(1, "new file"))
            out.write(line(910, "written to the old file after it was moved"))
    run.wait()
    os.truncate(logs[0], 0)
    run.wait()
    with logs[0].open("a") as out:
        out.write(line(920, "after it was truncated"))
    run.wait()
    logs[1].unlink()
    run.wait()
    with logs[2].open("ab") as out:
        out.write(b"2026-11-15T01:37:05.1Z stdout F bad \xff\xfe bytes \xe2\x82 end\n")
        out.write(line(930, "no line end").encode().rstrip())
    run.wait(2)
    want, got = run.stop()
    assert got == want
    assert sum(want.values()) > 1500


def test_plain_files_with_copytruncate_and_symlinks(both: Callable[..., Both], tmp_path: Path) -> None:
    place = tmp_path / "logs"
    place.mkdir()
    log = place / "train.log"
    log.write_text("".join(f"step {i}\n" for i in range(300)))
    (tmp_path / "elsewhere").write_text("behind a link\n")
    (place / "link.log").symlink_to(tmp_path / "elsewhere")
    run = both(include=[str(place / "*.log*")], start_at="beginning", include_file_path_resolved=True)
    run.wait()
    with log.open("a") as out:
        out.write("before the copy\r\n")
    (place / "train.log.1").write_bytes(log.read_bytes())
    os.truncate(log, 0)
    with log.open("a") as out:
        out.write("after the copy, another beginning\n")
    run.wait()
    (tmp_path / "other").write_text("the link goes elsewhere now\n")
    (place / "link.log").unlink()
    (place / "link.log").symlink_to(tmp_path / "other")
    run.wait()
    log.rename(place / "train.log.2")
    log.write_text("third\n")
    run.wait()
    want, got = run.stop()
    assert {(r[2], r[3]) for r in got} == {(r[2], r[3]) for r in want}
    assert Counter(r[2] for r in got.elements()) == Counter(r[2] for r in want.elements())


@pytest.mark.parametrize(
    "options",
    [
        {"multiline": {"line_start_pattern": r"^\d{4}-"}},
        {"multiline": {"line_end_pattern": "END", "omit_pattern": True}},
        {"multiline": {"line_start_pattern": "LOG ", "omit_pattern": True}},
        {"max_log_size": 40},
        {"max_log_size": 40, "max_log_size_behavior": "truncate"},
        {"preserve_leading_whitespaces": True},
        {"preserve_trailing_whitespaces": True, "include_file_record_number": True, "include_file_record_offset": True},
        {"encoding": "utf-16le"},
        {"encoding": "latin1"},
        {"attributes": {"a": "b"}, "resource": {"service.name": "x"}, "include_file_permissions": True},
    ],
    ids=lambda options: "-".join(options),
)
def test_how_files_are_cut(both: Callable[..., Both], tmp_path: Path, options: dict[str, Any]) -> None:
    text = (
        "2026-11-15 first\n  continued\n2026-11-16 second LOG one END\n\nLOG two\n"
        + "x" * 100 + "\n   blanks around \t \nLOG three END tail END\n" + "y" * 40 + "\nlast without end"
    )  # fmt: skip
    encoding = options.get("encoding", "utf-8")
    log = tmp_path / "a.log"
    log.write_bytes(text.encode(encoding))
    run = both(include=[str(log)], start_at="beginning", **options)
    run.wait(2)
    with log.open("ab") as out:
        out.write("\n2026-11-17 third\nmore\n".encode(encoding))
    run.wait(2.5)
    want, got = run.stop()
    assert got == want
    assert want


OPERATORS: dict[str, list[dict[str, Any]]] = {
    "regex": [
        {"type": "regex_parser",
         "regex": r"^(?P<time>\S+ \S+) (?P<level>[A-Z]+)(?: \[(?P<rank>\d+)\])? (?P<message>.*)$",
         "timestamp": {"parse_from": "attributes.time", "layout": "%Y-%m-%d %H:%M:%S.%L"},
         "severity": {"parse_from": "attributes.level", "mapping": {"fatal": "CRITICAL", "error3": ["OOPS", 42]}}},
        {"type": "move", "from": "attributes.message", "to": "body"},
        {"type": "remove", "field": "attributes.time"},
    ],
    "json": [
        {"type": "json_parser", "if": 'body startsWith "{"', "parse_to": "attributes"},
        {"type": "add", "field": "attributes.kind", "value": "EXPR(attributes.level ?? 'none')"},
        {"type": "add", "field": 'resource["service.name"]', "value": "train"},
    ],
    "json_ints": [{"type": "json_parser", "parse_ints": True, "parse_to": "body", "on_error": "drop"}],
    "filter": [{"type": "filter", "expr": 'body contains "step" or body matches "^\\\\s*$"'}],
    "router": [
        {"type": "router", "routes": [
            {"expr": 'body startsWith "{"', "output": "parse", "attributes": {"route": "json"}},
            {"expr": 'body matches "ERROR"', "output": "mark"}], "default": "last"},
        {"type": "json_parser", "id": "parse", "output": "last"},
        {"type": "add", "id": "mark", "field": "attributes.error", "value": True, "output": "last"},
        {"type": "add", "id": "last", "field": "attributes.end", "value": 1},
    ],
    "recombine": [
        {"type": "recombine", "combine_field": "body", "is_first_entry": 'body matches "^[^\\\\s]"',
         "source_identifier": 'attributes["log.file.name"]'},
    ],
    "recombine_last": [
        {"type": "recombine", "combine_field": "body", "is_last_entry": 'body endsWith ";"', "combine_with": "|",
         "max_batch_size": 4, "overwrite_with": "newest"},
    ],
    "epoch": [
        {"type": "regex_parser", "regex": r"at=(?P<at>[\d.]+)", "on_error": "send_quiet"},
        {"type": "time_parser", "parse_from": "attributes.at", "layout_type": "epoch", "layout": "s.ns",
         "if": "attributes.at != nil"},
    ],
    "gotime": [
        {"type": "regex_parser", "regex": r"^(?P<when>\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}\.\d+)"},
        {"type": "time_parser", "parse_from": "attributes.when", "layout_type": "gotime",
         "layout": "2006-01-02 15:04:05.000", "location": "America/New_York"},
    ],
    "reshape": [
        {"type": "json_parser", "if": 'body startsWith "{\\"level"', "parse_to": "body"},
        {"type": "copy", "from": "body", "to": "attributes.line"},
        {"type": "copy", "from": "body.deep", "to": "attributes.deep", "if": 'type(body) == "map"'},
        {"type": "flatten", "field": "body.deep", "if": 'type(body) == "map"'},
        {"type": "retain", "fields": ["body.a", "body.level", "attributes.deep"], "if": 'type(body) == "map"'},
    ],
    "retain_attributes": [
        {"type": "regex_parser", "regex": r"^(?P<date>\S+) (?P<time>\S+) (?P<level>[A-Z]+)"},
        {"type": "retain", "fields": ["attributes.level", "attributes.none"]},
        {"type": "noop"},
    ],
    "key_values": [{"type": "key_value_parser"}],
    "key_values_to_body": [{"type": "key_value_parser", "parse_to": "body", "delimiter": ":", "pair_delimiter": ","}],
    "replace": [
        {"type": "regex_replace", "field": "body", "regex": r"(\d+)-(?P<month>\d+)", "replace_with": "<x>"},
        {"type": "regex_replace", "field": "body", "regex": "[aeiou]"},
        {"type": "regex_replace", "field": "body", "regex_name": "ansi_control_sequences"},
    ],
    "unquote": [{"type": "unquote", "field": "body"}],
    "sanitize": [{"type": "sanitize_utf8"}],
    "assign": [
        {"type": "json_parser", "if": 'body startsWith "{\\"level"'},
        {"type": "assign_keys", "field": "attributes.deep.a", "keys": ["w", "x", "y", "z"]},
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(both: Callable[..., Both], tmp_path: Path, name: str) -> None:
    log = tmp_path / "a.log"
    log.write_text(
        "2026-11-15 01:37:04.123 INFO [3] step 1\n2026-11-15 01:37:04.999 CRITICAL lost\n"
        "2026-11-15 01:37:05.5 OOPS odd;\n  continued ERROR\n\tmore;\n"
        '{"level": "warn", "n": 1, "f": 1.5, "deep": {"a": [1, "x", null, true]}, "big": 123456789012345}\n'
        '{"broken": \n[1, 2]\nat=1794706624.123456789 tail\nat=12 none\nstep;\nplain text\n"quoted"\nlast one\n'
        'name=stanza age=2\na="x y=z"  b=\'q\' c=\na:1,b : 2 ,c:"3,4"\na=1 stray\na="open\nk==v\n'
        '\'v\'\n\'vv\'\n"say \\"hi\\"\\n\\u2713\\x41\\101"\n`back\\n`\n"bad\\q"\n"a"b"\n'
        "\x1b[31mred\x1b[0m \x1b[1;32mbold\x1b[m\nna\u00efve \u2713\n"
    )
    run = both(include=[str(log)], start_at="beginning", operators=OPERATORS[name])
    run.wait(7 if "recombine" in name else 1.5)
    want, got = run.stop()
    assert got == want
    assert want


@pytest.mark.parametrize("compression", ["gzip", "auto"])
def test_compressed_files(both: Callable[..., Both], tmp_path: Path, compression: str) -> None:
    place = tmp_path / "logs"
    place.mkdir()
    text = "".join(f"line {n} of a file that is long enough to be known again\n" for n in range(400))
    (place / "a.log.gz").write_bytes(gzip.compress(text.encode()))
    if compression == "auto":
        (place / "b.log").write_text(text.replace("line", "LINE"))
    run = both(include=[str(place / "*")], start_at="beginning", compression=compression)
    run.wait(2)
    if compression == "auto":
        data = (place / "b.log").read_bytes() + b"written before it was compressed\n"
        (place / "b.log.gz.tmp").write_bytes(gzip.compress(data))
        (place / "b.log").unlink()
        (place / "b.log.gz.tmp").rename(place / "b.log.gz")
        run.wait(2)
    want, got = run.stop()
    assert Counter(r[2] for r in got.elements()) == Counter(r[2] for r in want.elements())
    assert sum(want.values()) >= 400

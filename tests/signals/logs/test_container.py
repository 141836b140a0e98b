"""Container runtimes' logs: our own cases, and those of other collectors where their data is at hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracecore.signals.bundle import identity
from tracecore.signals.logs import reader
from tracecore.signals.logs.blocks import MAX_LINE
from tracecore.signals.logs.dialects import DOCKER_PIECE, last_redraws, whole_bars
from tracecore.signals.logs.selector import SelectAll, SelectLiterals, Selector
from tracecore.signals.record import LogSignal
from tracecore.signals.stamps import parse
from tracecore.signals.stream import Clock, Stream

Make = Callable[..., Stream]
STAMP = "2026-11-15T01:37:04.123456789Z"


def read(stream: Stream, selector: Selector | None = None, **options: Any) -> list[LogSignal]:
    return list(reader.read(stream, selector or SelectAll(), Clock(), **options))


def test_a_traceback_in_a_container_log_is_one_record(make: Make) -> None:
    lines = ["Traceback (most recent call last):", '  File "a.py", line 1, in <module>', "    f()", "ValueError: x"]
    data = "".join(f"{STAMP} stderr F {line}\n{STAMP} stdout F step {i}\n" for i, line in enumerate(lines))
    found = read(make(data, "cri"))
    (trace,) = (r for r in found if "Traceback" in str(r["log"]["body"]))
    assert trace["log"]["body"] == "\n".join(lines)
    assert trace["log"]["attributes"] == {"log.iostream": "stderr", "logtag": "F"}
    assert trace["log"]["time_unix_nano"] == parse(STAMP)
    assert len(found) == 5


def test_pieces_of_a_line_are_joined_by_stream(make: Make) -> None:
    data = (
        f"{STAMP} stdout P one \n{STAMP} stderr P ONE \n{STAMP} stdout P two \n{STAMP} stderr F TWO\n"
        f"{STAMP} stdout F three\n{STAMP} stdout F next\n"
    )
    assert sorted(str(r["log"]["body"]) for r in read(make(data, "cri"))) == ["ONE TWO", "next", "one two three"]


def test_each_redraw_of_a_bar_is_a_line_of_its_own(make: Make) -> None:
    data = (
        f"{STAMP} stderr P \r 10%|█ | 1/10\n{STAMP} stderr P \r 20%|██| 2/10\n{STAMP} stdout F \rdone\n"
        f"{STAMP} stdout P 3/10 [===>..]\r\n{STAMP} stdout P 4/10 [====>.]\r\n{STAMP} stdout P a stdout P \n"
        f"{STAMP} stdout F b"
    )
    found = [(str(r["log"]["body"]).strip(), r["log"]["time_unix_nano"]) for r in read(make(data, "cri"))]
    bodies = ["10%|█ | 1/10", "20%|██| 2/10", "done", "3/10 [===>..]", "4/10 [====>.]", "a stdout P b"]
    assert found == [(body, parse(STAMP)) for body in bodies]


@pytest.mark.parametrize("end", ["\n", ""])
def test_no_byte_of_a_bar_moves(end: str) -> None:
    block = f"{STAMP} stderr P \rbar{end}".encode()
    assert whole_bars(block) == f"{STAMP} stderr F  bar{end}".encode()
    assert whole_bars(b" stderr P \r") == b" stderr F  "
    untouched = f"{STAMP} stdout F say stderr P \rhello{end}".encode()
    assert whole_bars(untouched) == untouched


def test_what_lies_across_a_cut_is_found(make: Make) -> None:
    data = f"{STAMP} stdout F a\n{STAMP} stdout P CUDA out of m\n{STAMP} stdout F emory\n{STAMP} stdout F b\n"
    found = read(make(data, "cri"), SelectLiterals([b"CUDA out of memory"]))
    assert [r["log"]["body"] for r in found] == ["CUDA out of memory"]
    assert (found[0]["source"].line, found[0]["source"].offset) == (2, len(f"{STAMP} stdout F a\n"))


def test_a_line_of_endless_pieces_is_given_out_at_the_limit(make: Make) -> None:
    piece = "x" * 16_000
    data = "".join(f"{STAMP} stdout P {piece}\n" for _ in range(MAX_LINE // 16_000 + 10))
    assert len(read(make(data, "cri"))) == 2


def test_docker_pieces_are_joined_where_docker_cut_them(make: Make) -> None:
    def line(text: str) -> str:
        return json.dumps({"log": text, "stream": "stdout", "time": STAMP}, separators=(",", ":")) + "\n"

    long = "y" * DOCKER_PIECE
    data = line(long) + line("end\n") + line("short without newline") + line("[rank3]: x\n")
    found = read(make(data, "docker"))
    assert [str(r["log"]["body"]) for r in found] == [long + "end", "short without newline", "x"]
    assert found[2]["log"]["attributes"]["gen_ai.training.rank"] == 3


def test_lines_that_are_not_the_runtimes_are_kept_as_they_are(make: Make) -> None:
    data = f"{STAMP} stdout F good\ngarbage in between\n{{broken json\n{STAMP} stdout\n"
    assert [r["log"]["body"] for r in read(make(data, "cri"))][:3] == ["good", "garbage in between", "{broken json"]


LINES = [
    f"{STAMP} stdout P a", f"{STAMP} stdout F b", f"{STAMP} stderr P c", f"{STAMP} stderr F ValueError: d",
    f"{STAMP} stderr F Traceback (most recent call last):", f'{STAMP} stderr F   File "x"', "junk", "",
]  # fmt: skip


@given(
    st.lists(st.sampled_from(LINES), max_size=20),
    st.integers(1, 200),
    st.sampled_from([SelectAll(), SelectLiterals([b"F b"])]),
)
def test_block_borders_do_not_matter(make: Make, lines: list[str], size: int, selector: Selector) -> None:
    stream = make("\n".join(lines), "cri")
    assert read(stream, selector, block_size=size) == read(stream, selector)


def peers(shared_data: Path, peer: str) -> list[dict[str, Any]]:
    cases = json.loads((shared_data / "peers" / "container_cases.json").read_text())["cases"]
    return [case for case in cases if case["peer"] == peer]


def entries(value: Any) -> list[dict[str, Any]]:
    return value if isinstance(value, list) else [value]


def test_the_collectors_cases(shared_data: Path, make: Make) -> None:
    checked = 0
    for case in peers(shared_data, "otel-collector container parser"):
        expected = case.get("expectedOutput") or case.get("expect")
        if expected is None or "input" not in case or "IfExpr" in case.get("config", {}):
            continue
        given_lines = entries(case["input"])
        path = given_lines[0].get("attributes", {}).get("log.file.path", "x.log")
        data = "\n".join(line["body"] for line in given_lines) + "\n"
        format = "docker" if data.startswith("{") else "cri"
        found = read(make(data, format, resource=identity.of(path)))
        assert len(found) == len(entries(expected)), case["name"]
        for record, wanted in zip(found, entries(expected), strict=True):
            assert record["log"]["body"] == wanted["body"], case["name"]
            assert record["log"]["time_unix_nano"] == wanted["timestamp_unix_nano"], case["name"]
            attributes = {k: v for k, v in wanted["attributes"].items() if k != "log.file.path"}
            assert record["log"]["attributes"].items() >= attributes.items(), case["name"]
            if "resource" in wanted:
                assert record["resource"]["attributes"].items() >= wanted["resource"].items(), case["name"]
            checked += 1
    assert checked >= 7


def test_eleven_hundred_pieces_are_one_line(make: Make) -> None:
    stamp = "2026-04-13T07:59:37.505201169-10:00"
    data = "".join(f"{stamp} stdout P part{i}.\n" for i in range(1100)) + f"{stamp} stdout F final\n"
    (record,) = read(make(data, "cri"))
    assert record["log"]["body"] == "".join(f"part{i}." for i in range(1100)) + "final"


def test_the_kubelets_and_promtails_cases(shared_data: Path, make: Make) -> None:
    checked = 0
    for case in peers(shared_data, "kubelet"):
        (record,) = read(make(case["input"], "docker" if case["input"].startswith("{") else "cri"))
        assert record["log"]["body"] == case["expect"]["log"].rstrip("\n")
        assert record["log"]["attributes"]["log.iostream"] == case["expect"]["stream"]
        assert record["log"]["time_unix_nano"] == parse(case["expect"]["timestamp"])
        checked += 1
    for case in peers(shared_data, "promtail"):
        if "input_lines" not in case or "exceeding" in case["name"]:
            continue  # the limit there is a number of pieces, ours a size
        bodies = [str(r["log"]["body"]) for r in read(make("\n".join(case["input_lines"]), "cri"))]
        assert bodies == [line.replace("|", "").rstrip() for line in case["expect_lines"]], case["name"]
        checked += 1
    assert checked >= 6


@pytest.mark.parametrize("stamp", ["3242", "not-a-time"])
def test_a_runtime_line_with_a_wrong_time_keeps_its_text(make: Make, stamp: str) -> None:
    (record,) = read(make(f"{stamp} stderr F message\n", "cri"))
    assert record["log"]["body"] == "message"
    assert record["log"]["attributes"]["tracecore.time.inferred"] is True


def _drawn(step: int) -> str:
    return rf"\r {step}%|# | {step}/100 [00:01\u003c00:02, 3.01it/s]"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("".join(map(_drawn, range(50))), _drawn(49)),
        (
            "".join(map(_drawn, range(50))) + r"2026-11-15 00:00:00 INFO on\n",
            _drawn(49) + r"2026-11-15 00:00:00 INFO on\n",
        ),
        ("".join(map(_drawn, range(50))) + r"\r", _drawn(49) + r"\r"),
        (_drawn(1) + "ValueError: x" + _drawn(2), None),
        (_drawn(1), None),
        (r"\r\r", None),
        (r"no bar\r\n", None),
    ],
)
def test_of_the_redraws_in_a_line_of_docker_the_last_is_left(text: str, left: str | None) -> None:
    line = f'{{"log":"{text}","stream":"stderr","time":"{STAMP}"}}\n'.encode()
    found = last_redraws(line * 2)
    assert len(found) == 2 * len(line)
    left = text if left is None else left
    assert found == line.replace(text.encode(), left.encode().rjust(len(text))) * 2
    assert last_redraws(line[:-1]) == found[: len(line) - 1]

"""The complaint at the end of a log: which statement counts, and where the last lines begin."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tracecore.actions import last_words
from tracecore.actions.last_words import LINES, _last_lines, complaint
from tracecore.actions.statements import _telling
from tracecore.facts.gpu import Xid
from tracecore.facts.process import ExceptionRaised, LauncherFailure
from tracecore.signals.record import Source

RAISED = ExceptionRaised(time=1, source=Source("a"), type="ValueError", message="bad")
XID = Xid(time=1, source=Source("a"), code=79)
LOG = b"first\n" * 40


def statement(**fields: Any) -> Any:
    rule = SimpleNamespace(tells=fields.pop("tells", None))
    given = {"fact": RAISED, "role": "error", "complains": True, "warned": False, "offset": len(LOG) - 6}
    return SimpleNamespace(**given | {"end": len(LOG), "text": "it", "line": 40, "rank": None, "rule": rule} | fields)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        *[({"role": role}, True) for role in sorted(last_words._TELLING)],
        ({"role": "symptom"}, False),
        ({"role": "symptom", "tells": "end"}, True),
        ({"tells": "end"}, True),
        ({"tells": "start"}, False),
        ({"complains": False}, False),
        ({"warned": True}, False),
        ({"fact": None}, True),
        ({"fact": XID}, False),
        ({"offset": len(LOG) - 6 * LINES}, True),
        ({"offset": len(LOG) - 6 * LINES - 1}, False),
    ],
)
def test_the_deciding_statement_counts_where_it_tells_what_failed(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], told: bool
) -> None:
    chosen = statement(**fields)
    monkeypatch.setattr(last_words, "read_tail", lambda data: SimpleNamespace(finished=[]))
    monkeypatch.setattr(last_words, "account", lambda tail, rules: SimpleNamespace(statements=[chosen]))
    monkeypatch.setattr(last_words, "decisive", lambda statements, ended: chosen)
    found = complaint(LOG)
    assert (found is not None) is told
    assert found is None or (found.text, found.offset, found.length) == ("it", chosen.offset, len(LOG) - chosen.offset)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("E0506 11:17:13.200100 140222 grpc_server.cc:91] ioloop shutdown pending: 1 call", False),
        ("[2025-05-06 11:17:13] ERROR tracker: failed to flush 3 records during shutdown", False),
        ("E0506 11:17:13.200100 140222 grpc_server.cc:91] ioloop gone: 1 call", True),
        ("ERROR: shutdown by the license server, the token is not valid", True),
    ],
)
def test_words_about_the_end_itself_do_not_say_why_a_program_ended(line: str, told: bool) -> None:
    found = complaint(b"completed step: 49, loss: 4.755\nsaved a checkpoint at step 49\n" + line.encode() + b"\n")
    assert (found is not None) is told


@pytest.mark.parametrize(
    ("lines", "begin"), [(0, 0), (1, 0), (LINES - 1, 0), (LINES, 0), (LINES + 1, 6), (LINES + 2, 12)]
)
def test_the_last_lines_begin_so_many_before_the_end(lines: int, begin: int) -> None:
    assert _last_lines(b"first\n" * lines) == begin
    assert _last_lines((b"first\n" * lines).rstrip()) == begin


@pytest.mark.parametrize(
    ("facts", "lines", "place"),
    [
        ([], ["----", "1: a", "b"], 1),
        ([], ["----", "a b", "b"], 1),
        ([], ["", "..."], 0),
        ([RAISED], ["Traceback", "  raise ValueError: x", "ValueError: bad", "end"], 2),
        ([RAISED], ["ValueError: one", "ValueError: two", "end"], 1),
        ([RAISED], ["a", '  File "ValueError"', "b"], 0),
        ([RAISED], ["a", "a ValueError", "b"], 1),
        ([LauncherFailure(time=1, source=Source("a"), launcher="x")], ["a", "  exitcode : 1", "b"], 1),
        ([XID], ["--", "NVRM"], 1),
    ],
)
def test_the_line_of_a_block_that_says_it_best(facts: list[Any], lines: list[str], place: int) -> None:
    stated: Any = SimpleNamespace(facts=facts)
    assert _telling(stated, lines) == place


@pytest.mark.parametrize(
    ("level", "told"), [("level=warning", False), ('"level": "warn"', False), ("level=error", True)]
)
def test_a_line_whose_field_says_that_it_warns_ends_no_run(level: str, told: bool) -> None:
    before = '2026-11-06T01:40:28.852707907Z stderr F time="2026-11-06T01:40:28.852Z" component=sandbox.runner '
    line = f'{before}{level} msg="user program failed" err="IndexError: list index out of range"\n'
    assert (complaint(b"step 49 loss 4.755\n" + line.encode()) is not None) is told

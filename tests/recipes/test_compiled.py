"""The compiled part says what numpy says, whatever the bytes, and writes nothing beyond the room it is given."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tracecore.ottl.planner.selection import ends, find, lined, plain
from tracecore.recipes.columns import Lines, Mask, read
from tracecore.recipes.known_shapes import MAX_KEYS, Answers
from tracecore.recipes.shapes import UNKNOWN, Shape
from tracecore.recipes.variants import Variants
from tracecore.signals import compiled
from tracecore.signals.arrays import np

ROOT = Path(__file__).resolve().parents[2]
build = SimpleNamespace(**runpy.run_path(str(ROOT / "hatch_build.py")))
WORDS = ["loss", "step", "batch", "rank", "epoch", "e", "checkpoint"]
MASK = Mask(WORDS)

#: Pieces of which lines are made that hold what each function looks for, whole and cut short.
PIECES = [
    b"\\xd3",
    b"]g5|",
    b"\\x81",
    b"'",
    b'"',
    b"\\x4",
    *(b"\n", b"\r", b"\r\n", b"\0", b"\xff", b"\x1b", b"\\", b" ", b"_", b"=", b"nan", b"inf", b"-inf", b"e", b"E+0"),
    *(b"\x1b[31m", b"\x1b[", b"\x1b[38;5;4 q", b"\x1b]0;title\x07", b"\x1b]8;;\x1b\\", b"\x1b]" + b"t" * 201 + b"\x07"),
    *(b"\\n", b'\\"', b"\\\\", b"\\u001b[0m", b"\\u0000", b"\\u000a", b"\\u00e9", b"\\u00", b"\\ud83d", b"\\x", b"\\/"),
    *(b"\\u6b65", b"\\u017f", b"\\u6b6", b"\xe6\xad\xa5"),
    *(b"step", b"loss", b"steps", b"epoch", b"word", b"checkpointed", b"deadbeef", b"70ea1d54", b"x1y2z3", b"batch_7"),
    *(b"0", b"7", b"2.5", b"1e9", b"9" * 18, b"9" * 19, b"9" * 20, b"1" * 400, b" FAILED", b'{"log":"'),
]
TEXTS = st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=12)), max_size=60).map(b"".join)
HOSTILE = [
    b"",
    b"\n",
    b"7",
    b"\n\n\n",
    b"x" * 70_000 + b"\n",
    b"1 " * 40_000,
    b"step 1\nstep 2",
    b"\\",
    b"\\u001",
    b"\x1b",
]


def hostile(test: Callable[..., None]) -> Callable[..., None]:
    for text in HOSTILE:
        test = example(text)(test)
    return settings(max_examples=150, deadline=None)(given(TEXTS)(test))


@contextmanager
def pure() -> Iterator[None]:
    part = compiled.part
    compiled.part = None  # type: ignore[misc]
    try:
        yield
    finally:
        compiled.part = part  # type: ignore[misc]


class _Exact(compiled.Compiled):
    """Gives just the room that is asked for, so that a write beyond it is noticed."""

    def _room(self, count: int, kind: Any) -> Any:
        return np.empty(count, kind)


@pytest.fixture(autouse=True)
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The compiled part, also where the package has none."""
    before = compiled.part
    given = os.environ.get("COMPILED_PART")
    if given or before is None:
        path = Path(given) if given else _compiled(tmp_path_factory.getbasetemp() / "lines.so")
        compiled.part = (_Exact if given else compiled.Compiled)(path)  # type: ignore[misc]
    yield
    compiled.part = before  # type: ignore[misc]


def _compiled(library: Path, *flags: str) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler: there is nothing to compare with")
    if not library.exists():
        subprocess.run([*build.command(compiled.SOURCE, library), *flags], check=True, capture_output=True)
    return library


def _same(function: Callable[[], Any]) -> Any:
    """Return what a function gives, after a comparison of the two ways."""
    with pure():
        wanted = function()
    found = function()
    assert np.array_equal(found, wanted) if isinstance(found, np.ndarray) else found == wanted
    return found


@hostile
def test_lines_end_where_they_end(text: bytes) -> None:
    _same(lambda: ends(text))
    _same(lambda: lined(text))


@hostile
def test_text_without_escapes_and_codes_is_the_same(text: bytes) -> None:
    for escaped in (False, True):
        _same(lambda escaped=escaped: plain(text, escaped))


@hostile
def test_the_same_is_hidden(text: bytes) -> None:
    _same(lambda: MASK(text))


@hostile
def test_the_same_lines_are_taken_out(text: bytes) -> None:
    lines = Lines(text)
    _same(lambda: lines.take(np.arange(1, len(lines.ends), 2)).block)


@hostile
def test_a_literal_is_found_where_it_is(text: bytes) -> None:
    for begin in (0, 3, len(text), len(text) + 1):
        _same(lambda begin=begin: find(text, b" FAILED", begin))


@hostile
def test_numbers_that_are_not_hidden_are_where_they_are(text: bytes) -> None:
    lines = Lines(text)
    with pure():
        wanted, _, numbers = Mask(WORDS).outlined(lines)
    keys, _, found = MASK.outlined(lines)
    assert found.edges.tolist() == numbers.edges.tolist()
    assert found.first.tolist() == numbers.first.tolist()
    # Without the compiled part, more of a line is part of its outline.
    pairs = set(zip(keys.tolist(), wanted.tolist(), strict=True))
    assert len(pairs) >= len(set(keys.tolist()))


WEIGHTS = st.integers(-(1 << 20), 1 << 20)
PLACES = st.integers(0, 3)
SHAPES = st.builds(
    Shape,
    steps=st.lists(st.tuples(PLACES, WEIGHTS), max_size=3).map(tuple),
    times=st.lists(st.tuples(PLACES, st.floats(-1e9, 1e9)), max_size=3).map(tuple),
    writer=st.lists(PLACES, max_size=2, unique=True).map(tuple),
    owner=st.lists(PLACES, max_size=2, unique=True).map(tuple),
    lengths=st.lists(st.tuples(PLACES, WEIGHTS), max_size=2).map(tuple),
    exponents=st.lists(st.tuples(PLACES, WEIGHTS), max_size=2).map(tuple),
    stepless=st.booleans(),
    base_time=st.none() | st.just(0.0),
    owner_known=st.lists(st.booleans(), max_size=2).map(tuple),
)
_BETWEEN = st.sampled_from([b" ", b"\n", b"a1", b"id=", b"\0", b"9" * 19, b"9" * 20])
NUMBERED = st.lists(_BETWEEN | st.integers(0, 1 << 62).map(b"%d ".__mod__), max_size=60).map(b"".join)


@settings(max_examples=120, deadline=None)
@given(NUMBERED, st.lists(st.tuples(SHAPES, st.integers(4, 6)), min_size=1, max_size=4), st.randoms())
def test_columns_are_the_same(text: bytes, shapes: list[tuple[Shape, int]], random: Any) -> None:
    rows = Variants()
    known = [rows.add(number, shape, count) for number, (shape, count) in enumerate(shapes)]
    rows.build()
    lines = Lines(text)
    variants = np.array([random.choice([*known, UNKNOWN]) for _ in lines.ends], np.int64)
    numbers = MASK.outlined(lines)[2]
    with pure(), np.errstate(over="ignore"):
        wanted, wrong = read(numbers, variants, rows)
    found, also = read(numbers, variants, rows)
    assert also.tolist() == wrong.tolist()
    for one, other in zip(found, wanted, strict=True):
        assert np.array_equal(one, other, equal_nan=True)


#: Some of them share a place.
KEYS = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 40).map((1 << 40).__mul__)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(KEYS, st.integers(-3, 99).filter(UNKNOWN.__ne__), max_size=900))
def test_what_is_known_by_a_key_is_found_unless_another_took_its_place(known: dict[int, int]) -> None:
    keys = Answers()

    def sets(count: int) -> Any:
        return np.ones((count, compiled.SET), np.uint64)

    for key, value in known.items():
        keys.add(np.array([key], np.int64), sets(1), value)
        assert keys.find(np.array([key], np.int64), sets(1)).tolist() == [value]
    last = {key & MAX_KEYS - 1: key for key in known}
    asked = [*known, 5, -5, 1 << 41]
    wanted = [known[key] if key in known and last[key & MAX_KEYS - 1] == key else UNKNOWN for key in asked]
    assert keys.find(np.array(asked, np.int64), sets(len(asked))).tolist() == wanted
    assert len(keys) == len(last)
    keys.drop(np.array([7, 8], np.int64))
    assert keys.find(np.array(asked, np.int64), sets(len(asked))).tolist() == [
        UNKNOWN if found in (7, 8) else found for found in wanted
    ]


def test_what_was_said_wrongly_of_a_block_is_refused() -> None:
    part = compiled.part
    assert part is not None
    with pytest.raises(ValueError, match="block"):
        part.outlined(b"ab\n", np.array([9], np.int64), np.zeros(8, np.uint8))
    with pytest.raises(ValueError, match="block"):
        part.joined(b"ab\n", np.array([1], np.int64), np.array([9], np.int64))
    rows = Variants()
    rows.add(0, Shape(steps=((0, 1),)), 1)
    rows.build()
    numbers = MASK.outlined(Lines(b"1\n"))[2]
    with pytest.raises(ValueError, match="block"):
        read(numbers, np.array([1], np.int64), rows)


def test_a_library_that_cannot_be_used_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACECORE_PURE_PYTHON", raising=False)
    broken = tmp_path / "lines.so"
    assert compiled.load(broken) is None
    broken.write_bytes(b"no library")
    assert compiled.load(broken) is None
    assert compiled.load(_compiled(tmp_path / "lacking.so", "-Dread_columns=something_else")) is None
    assert compiled.load(_compiled(tmp_path / "older.so", "-USOURCE", "-DSOURCE=7u")) is None
    assert compiled.load(_compiled(tmp_path / "good.so")) is not None
    monkeypatch.setenv("TRACECORE_PURE_PYTHON", "1")
    assert compiled.load() is None
    assert build.compile_part(_copied(tmp_path)) is None


def _copied(folder: Path) -> Path:
    (folder / build.PLACE).mkdir(parents=True)
    shutil.copy(compiled.SOURCE, folder / build.PLACE)
    return folder


def test_the_version_says_where_the_compiled_part_is_missing() -> None:
    environment = {**os.environ, "TRACECORE_PURE_PYTHON": "1"}
    command = [sys.executable, "-m", "tracecore", "--version"]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert said == f"tracecore {version('tracecore-diagnosis')}, without its compiled part\n"


def test_without_a_compiler_nothing_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", str(tmp_path / "no-such-compiler"))
    root = _copied(tmp_path)
    old = root / build.PLACE / "lines.so"
    old.write_bytes(b"of an earlier source")
    assert build.compile_part(root) is None
    assert not old.exists()
    monkeypatch.setenv("CC", "false")
    assert build.compile_part(root) is None


@pytest.mark.integration
def test_no_byte_is_read_or_written_outside(tmp_path: Path) -> None:
    """All tests above once more, with a library and an allocator that notice."""
    flags = "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g"
    asan = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    if not Path(asan).is_absolute():
        pytest.skip("the compiler has no address sanitizer")
    checked = {
        "COMPILED_PART": str(_compiled(tmp_path / "checked.so", *flags)),
        "LD_PRELOAD": asan,
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(
        [*command, "-m", "not integration"], capture_output=True, text=True, cwd=ROOT, env={**os.environ, **checked}
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

"""No text makes a statement of the system recipes fail, and a prefix changes nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracecore.recipes import directory
from tracecore.recipes.cases import Recipe, RecipeCase, cases_of, load_cases

NAMES = ("kernel", "kubernetes", "scheduler")
RECIPES = {name: Recipe(directory() / f"{name}.yaml") for name in NAMES}
CASES = [(name, case) for name in NAMES for case in load_cases(cases_of(directory() / f"{name}.yaml"))]
BODIES = sorted({case.body for name, case in CASES if isinstance(case.body, str)})


def _mangled() -> st.SearchStrategy[str]:
    """Lines like real ones: cut, joined, with prefixes and stray characters."""
    piece = st.sampled_from(BODIES)
    cut = st.builds(lambda body, start, end: body[start:end], piece, st.integers(0, 60), st.integers(0, 300))
    noise = st.text(max_size=12)
    return st.builds("{}{}{}".format, noise, st.one_of(piece, cut, st.builds("{}\n{}".format, piece, cut)), noise)


@settings(max_examples=150)
@given(body=_mangled())
def test_no_line_makes_a_statement_fail(body: str) -> None:
    for name in ("kernel", "kubernetes", "scheduler"):
        assert RECIPES[name].run(RecipeCase(name="", path="", line=0, body=body)).errors == ()


@settings(max_examples=60)
@given(body=st.text(alphabet=st.characters(codec="utf-8"), max_size=200))
def test_arbitrary_text_stamps_nothing(body: str) -> None:
    for name in ("kernel", "kubernetes", "scheduler"):
        assert RECIPES[name].run(RecipeCase(name="", path="", line=0, body=body)).attributes == {}


PREFIXES = (
    "",
    "[ 1843.308145] ",
    "[Sun Dec  1 14:54:40 2024] ",
    "Oct 16 20:47:19 host kernel: ",
    "kern  :warn  : 2025-01-21T04:41:44,283302+00:00 ",
    "<4>[  201.654822] ",
    "6,3973,227996636,-;",
    "2025-01-21T04:41:44+00:00 host kernel: [12.3] ",
    "[  +0.000844] ",
)


#: What rows of tables say that other programs print; no kernel writes before them.
OF_TABLES = {
    "sensor",
    "file_system_full",
    "health_check_failed",
    "nvlink_down",
    "nvlink_errors",
    "link_errors",
    "memory_fragmented",
    "storage_cluster",
}


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_prefix_changes_nothing(prefix: str) -> None:
    lines = [(case.body, case) for name, case in CASES if name == "kernel" and isinstance(case.body, str)]
    for body, case in lines:
        if body.startswith(("[", "<", "Sep ", "Jan ", "Feb ", "jan", "systemd", "Command")):
            continue
        plain = RECIPES["kernel"].run(RecipeCase(name="", path="", line=0, body=body)).attributes
        if OF_TABLES & set(plain.values()):
            continue
        assert RECIPES["kernel"].run(RecipeCase(name="", path="", line=0, body=prefix + body)).attributes == plain, (
            case.name
        )

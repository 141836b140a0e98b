"""Every mistake that lint knows, made in a copy of a good pattern, and what lint says of it."""

from __future__ import annotations

import ast
import inspect
import re
import shutil
import sys
from pathlib import Path

import pytest

from tracecore.patterns import lint as checks
from tracecore.patterns.cases import folder
from tracecore.patterns.hbm_ecc.detector import HbmEcc
from tracecore.patterns.lint import CHECKS, lint
from tracecore.patterns.loading import at

CODE, SCHEMA, BOOK = "detector.py", "verdict.schema.json", "runbook.md"
CASES, GOLDEN, FALSE = "cases/timelines.yaml", "cases/golden/rise_then_xid.json", "cases/falsifiers.yaml"
SETTING = "    window: Duration = 5 * MINUTE"
FALSIFIER = "- {name: id as a number, golden: rise_then_xid, set: {/pattern.id: 3}}"
#: What is replaced in a file ("" for the whole file), by what (None: the file is deleted), and what lint says.
MISTAKES: tuple[tuple[str, str, str | None, str], ...] = (
    (CODE, '    id = "3"\n    name = "hbm_ecc"', '    id = "3"\n    name = "hbm_ec"', "its folder is called hbm_ecc"),
    (CODE, '    id = "3"\n    name = "hbm_ecc"', '    id = "3"\n    name = "Hbm_ecc"', "its name is not lower_case"),
    (CODE, '    id = "3"', "    id = 3", "its id is not a string"),
    (CODE, '    id = "3"', '    id = ""', "its id is not a string"),
    (CODE, '    role = "cause"', '    role = "reason"', "role reason is none of cause, symptom, outcome"),
    (CODE, '"experimental"', '"new"', "maturity new is neither experimental nor stable"),
    (CODE, "needs = (EccDelta, Xid)", "needs = ()", "needs is not a tuple of fact types"),
    (CODE, "needs = (EccDelta, Xid)", "needs = (EccDelta, Xid, str)", "needs is not a tuple of fact types"),
    (CODE, "triggers = (EccDelta,)", "triggers = (EccDelta, Fact)", "triggers it does not need: Fact"),
    (CODE, "(Verdict, frozen=True, kw_only=True)", "(msgspec.Struct)", "its module defines no Verdict"),
    (CODE, 'str] = "3"', 'str] = "4"', "HbmEccVerdict.pattern_id is '4', the pattern says '3'"),
    (CODE, 'Role] = "cause"', 'Role] = "symptom"', "HbmEccVerdict.role is 'symptom', the pattern says 'cause'"),
    (CODE, '    id = "3"', '    __doc__ = ""\n    id = "3"', "it has no docstring"),
    (CODE, "import msgspec", "import msgspec  # TODO", "detector.py says TODO"),
    (BOOK, "## Blind spots", "## Blind spots\nTODO TODO", "runbook.md says TODO, 2 times"),
    (CASES, "why: ", "why: TODO ", "cases/timelines.yaml says TODO, 25 times"),
    (CODE, "Config(Settings,", "Config(msgspec.Struct,", "Config is not a patterns.config.Settings"),
    (CODE, "Settings, frozen=True", "Settings, frozen=False", "Config is not frozen, or takes unknown fields"),
    (CODE, "Settings, f", "Settings, forbid_unknown_fields=False, f", "Config is not frozen, or takes unknown fields"),
    (CODE, SETTING, "    window: int = 5 * MINUTE", "Config.window looks like a duration and is not a Duration"),
    (CODE, SETTING, "    window: int = 5", "Config.window has no bound"),
    (CODE, SETTING, f"{SETTING}\n    most: float = 0.5", "Config.most has no bound"),
    (CODE, "return self.config.window", "return 0", "its horizon is not positive"),
    (SCHEMA, "", None, "no verdict.schema.json"),
    (SCHEMA, '"type": "object"', '"type": "thing"', "verdict.schema.json is no schema: "),
    (SCHEMA, "2020-12", "2019-09", "verdict.schema.json does not say it is draft 2020-12"),
    (
        SCHEMA, '"additionalProperties": false,', "",
        "verdict.schema.json allows additional properties at /, /properties/evidence_trail/items",
    ),
    (SCHEMA, '{"const": "3"}', '{"const": "4"}', 'verdict.schema.json: pattern.id is not {"const": "3"}'),
    (SCHEMA, '"headline", "remed', '"remed', "verdict.schema.json does not require headline"),
    (SCHEMA, '      "minItems": 2,\n', "", "verdict.schema.json allows an empty trail"),
    (
        SCHEMA, '"hw_error", "k', '"hw_error", "x", "k',
        "verdict.schema.json allows evidence of kind x, which no needed fact has",
    ),
    (
        SCHEMA, '{"enum": ["hw_error"', '{"examples": ["hw_error"',
        "verdict.schema.json does not say which kinds of evidence there are",
    ),
    (BOOK, "", None, "no runbook.md"),
    (BOOK, "## Blind spots", "## Blind", "runbook.md has no section “Blind spots”"),
    (
        BOOK, "## Blind spots", "## Blind spots\nSome of\n## More",
        "runbook.md says hardly anything under “Blind spots”; write a sentence",
    ),
    (BOOK, "# hbm_ecc: ", "# hbm: ", "runbook.md does not begin with “# hbm_ecc”"),
    (BOOK, "EccDelta", "Delta", "runbook.md does not name the fact EccDelta"),
    (BOOK, "{{window}}", "{{windo}}", "runbook.md asks for settings that do not exist: windo"),
    (BOOK, "{{window}}", "five minutes", "runbook.md does not show the settings {{window}}"),
    (CASES, "kind: storm", "kind: guard", "no case of kind storm"),
    (CASES, "kind: canonical", "kind: truncated", "no case of kind canonical"),
    (CASES, "case: rise_alone\nkind: guard", "case: rise_alone\nkind: canonical", ""),
    (CASES, "case: storm\n", "case: storm_of_xids\n", "golden storm.json belongs to no case"),
    (CASES, "kind: setting", "kind: guard", "no case of kind setting, although it has settings"),
    (CODE, '"experimental"', '"stable"', "it is stable without a case of kind real that ends with a verdict"),
    (GOLDEN, '"confidence": "full"', '"confidence": "sure"', "rise_then_xid.json: the envelope rejects it: "),
    (GOLDEN, '"hw.errors.delta": 1', '"hw.errors.delta": ""', "rise_then_xid.json: promotes an empty hw.errors.delta"),
    (GOLDEN, 's.delta": 1', 's.delta": null', "rise_then_xid.json: promotes an empty hw.errors.delta"),
    (
        GOLDEN, '"hw.errors.delta": 1', '"hw.nonsense": 1',
        "promotes hw.nonsense: not in docs/attributes.md, nor an own `tracecore.alert.…` in the runbook",
    ),
    (FALSE, "", FALSIFIER, "1 in falsifiers.yaml, at least 10 are needed"),
    (FALSE, "{name: no headline", "{name: id as a number", "two falsifiers are called “id as a number”"),
    (FALSE, "/pattern.id: 3}", '/pattern.id: "3"}', "the schema does not reject “id as a number”"),
    (FALSE, "remove: [/headline]", "remove: [/headlin]", "“no headline” cannot be made: "),
    (
        FALSE, FALSIFIER, FALSIFIER.replace("xid,", "xids,"),
        "golden rise_then_xids, which falsifiers change, cannot be read: ",
    ),
    (GOLDEN, '"errors": 1', '"errors": 0', "golden rise_then_xid is not valid to begin with: "),
)  # fmt: skip


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of a good pattern, to be spoilt."""
    target = tmp_path / "hbm_ecc"
    shutil.copytree(folder(HbmEcc), target, ignore=shutil.ignore_patterns("__pycache__"))
    return target


def said_of(home: Path) -> list[str]:
    sys.modules.pop("tracecore_pattern_hbm_ecc", None)
    kind = at(home, ())
    assert kind is not None
    return [finding.message for finding in lint([kind])]


def test_a_good_pattern_has_no_mistakes(copy: Path) -> None:
    assert said_of(copy) == []


@pytest.mark.parametrize(("file", "old", "new", "message"), MISTAKES, ids=[one[3][:50] or "none" for one in MISTAKES])
def test_each_mistake_is_said(copy: Path, file: str, old: str, new: str | None, message: str) -> None:
    path = copy / file
    if new is None:
        path.unlink()
    else:
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new) if old else new, encoding="utf-8")
    found = said_of(copy)
    assert [one for one in found if one.startswith(message)] if message else found == []


def sayable() -> list[str]:
    """Regular expressions of all that the checks can say."""
    names = {check.__name__ for check, _ in CHECKS} | {"_stable"}
    found = []
    for function in ast.parse(inspect.getsource(checks)).body:
        if isinstance(function, ast.FunctionDef) and function.name in names:
            for node in ast.walk(function):
                for text in [node.value] if isinstance(node, ast.Yield) else []:
                    if isinstance(text, ast.IfExp):
                        text = text.body
                    if isinstance(text, ast.Constant):
                        found.append(re.escape(str(text.value)))
                    elif isinstance(text, ast.JoinedStr):
                        found.append(
                            "".join(re.escape(p.value) if isinstance(p, ast.Constant) else ".*" for p in text.values)
                        )
    return found


#: Mistakes that no pattern can make whose settings are of `patterns.config`, or that need more than one edit.
ELSEWHERE = (
    "takes half a second", "does not name it", "no canonical case ends", "edge cases all end", "fewer than two cases",
)  # fmt: skip


def test_a_mistake_is_made_for_all_that_lint_can_say() -> None:
    unmade = [text for text in sayable() if not any(re.match(text, message) for *_, message in MISTAKES)]
    assert [text for text in unmade if not any(re.escape(one) in text for one in ELSEWHERE)] == []

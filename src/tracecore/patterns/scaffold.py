"""A folder for a new pattern: everything in its place, cases that run, and fail until the detector is written."""

from __future__ import annotations

import keyword
from pathlib import Path
from string import Template

import re2

from tracecore.patterns.runbook import SECTIONS


def create(into: Path, name: str, ident: str) -> Path:
    """Make the folder of a new pattern.

    Args:
        into: where the folder goes.
        name: of the pattern and of its folder.
        ident: its id.

    Raises:
        ValueError: the name is not lower_case, the id is none, or the folder exists.
    """
    if not re2.fullmatch(r"[a-z][a-z0-9_]{1,40}", name):
        raise ValueError(f"`{name}`: a pattern's name is lower-case letters, digits and underscores")
    if keyword.iskeyword(name):
        raise ValueError(f"`{name}`: Python has another meaning for this word")
    if not re2.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,40}", ident):
        raise ValueError(f"`{ident}`: an id is letters, digits, dots and dashes")
    home = into / name
    if home.exists():
        raise ValueError(f"{home} exists")
    (home / "cases").mkdir(parents=True)
    values = {"name": name, "id": ident, "Name": "".join(part.capitalize() for part in name.split("_"))}
    for path, text in FILES.items():
        (home / path).write_text(Template(text).substitute(values), encoding="utf-8")
    return home


_DETECTOR = '''"""TODO: what broke, in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from tracecore.facts.gpu import Xid
from tracecore.facts.kubernetes import PodEvicted
from tracecore.patterns.config import MINUTE, Duration, Settings
from tracecore.patterns.contract import Pattern, Role, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key, Window


class Config(Settings, frozen=True, kw_only=True):
    """
    Args:
        window: how long after the first fact the second one still joins.
    """

    window: Duration = 5 * MINUTE


class ${Name}Verdict(Verdict, frozen=True, kw_only=True):
    """Holds the facts it joined; the words are made when somebody reads them."""

    pattern_id: ClassVar[str] = "${id}"
    pattern_name: ClassVar[str] = "${name}"
    role: ClassVar[Role] = "cause"

    first: Xid
    second: PodEvicted

    def headline(self) -> str:
        return f"TODO: what broke, on {self.second.node}"

    def remediation(self) -> str:
        return f"TODO: the command to run next on {self.second.node}"

    def evidence(self) -> Sequence[Fact]:
        return (self.first, self.second)

    def fields(self) -> dict[str, Any]:
        return {"k8s.node.name": self.second.node}

    def promoted(self) -> dict[str, Any]:
        return {"k8s.node.name": self.second.node}


class ${Name}(Pattern[Config]):
    """TODO: which facts, in which order, how far apart, on what they must agree."""

    id = "${id}"
    name = "${name}"
    role = "cause"
    maturity = "experimental"
    needs = (Xid, PodEvicted)
    triggers = (PodEvicted,)
    Config = Config

    @property
    def horizon(self) -> int:
        return self.config.window

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        return ((fact.node,),) if fact.node else ()

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        # TODO: join window.of(Xid) and window.of(PodEvicted). Measure from a fact, never from `now`.
        return []
'''

_SCHEMA = """{
  "$$schema": "https://json-schema.org/draft/2020-12/schema",
  "title": "${name} verdict",
  "type": "object",
  "additionalProperties": false,
  "required": ["pattern.id", "headline", "remediation", "confidence", "evidence_trail", "k8s.node.name"],
  "properties": {
    "pattern.id": {"const": "${id}"},
    "headline": {"type": "string", "minLength": 1},
    "remediation": {"type": "string", "minLength": 1},
    "confidence": {"const": "full"},
    "k8s.node.name": {"type": "string", "minLength": 1},
    "evidence_trail": {
      "type": "array",
      "minItems": 2,
      "items": {
        "type": "object",
        "additionalProperties": false,
        "required": ["kind", "uid", "timestamp", "description"],
        "properties": {
          "kind": {"enum": ["kernel_event", "pod_event"]},
          "uid": {"type": "string", "minLength": 1},
          "timestamp": {"type": "string", "pattern": "^[0-9]{4}(-[0-9]{2}){2}T[0-9]{2}(:[0-9]{2}){2}(\\\\.[0-9]+)?Z$$"},
          "description": {"type": "string", "minLength": 1}
        }
      }
    }
  }
}
"""

_CASES = """case: canonical
kind: canonical
why: TODO what the pattern is for; this fails until the detector joins the two
facts:
  - t+0s xid: {node: node-7, gpu: "0000:3b:00.0", code: 79}
  - t+30s pod_evicted: {node: node-7, pod: train/worker-0}
expect_none_at: [t+29s]
expect_at:
  t+30s:
    - {confidence: full, k8s.node.name: node-7}
---
case: last_instant
kind: edge
why: exactly at the end of the window it still joins
facts:
  - t+0s xid: {node: node-7, gpu: "0000:3b:00.0", code: 79}
  - t+5m pod_evicted: {node: node-7, pod: train/worker-0}
expect_at:
  t+5m:
    - {k8s.node.name: node-7}
---
case: past_last_instant
kind: edge
why: one nanosecond later it does not
facts:
  - t+0s xid: {node: node-7, gpu: "0000:3b:00.0", code: 79}
  - t+5m1ns pod_evicted: {node: node-7, pod: train/worker-0}
expect_none_at: [t+6m]
---
case: other_node
kind: scope
why: an eviction on another node is another story
facts:
  - t+0s xid: {node: node-7, gpu: "0000:3b:00.0", code: 79}
  - t+30s pod_evicted: {node: node-8, pod: train/worker-0}
expect_none_at: [t+31s]
---
case: reversed
kind: order
why: the facts are read in the other order
order: reversed
facts:
  - t+0s xid: {node: node-7, gpu: "0000:3b:00.0", code: 79}
  - t+20s pod_evicted: {node: node-7, pod: train/worker-0}
expect_at:
  t+21s:
    - {k8s.node.name: node-7}
"""

_FALSIFIERS = """# Each changes the first verdict of a golden; the schema must reject every one. Ten are the least.
- {name: id of another pattern, golden: canonical, set: {/pattern.id: "0"}}
- {name: no headline, golden: canonical, remove: [/headline]}
- {name: empty remediation, golden: canonical, set: {/remediation: ""}}
- {name: empty trail, golden: canonical, set: {/evidence_trail: []}}
- {name: evidence of another kind, golden: canonical, set: {/evidence_trail/0/kind: rumour}}
- {name: evidence without uid, golden: canonical, remove: [/evidence_trail/0/uid]}
- {name: a field nobody knows, golden: canonical, set: {/severity: high}}
- {name: confidence nobody knows, golden: canonical, set: {/confidence: maybe}}
"""

_RUNBOOK = "# ${name}: TODO what broke\n\n" + "\n".join(
    f"## {section}\n"
    + {
        "Signals": "| fact | layer | read from |\n|---|---|---|\n| `Xid` | kernel | TODO |\n"
        "| `PodEvicted` | kubernetes | TODO |\n",
        "How it is decided": "TODO: the rule, with its settings as they are: within {{window}}.\n",
    }.get(section, "TODO\n")
    for section in SECTIONS
)

FILES: dict[str, str] = {
    "__init__.py": "",
    "detector.py": _DETECTOR,
    "verdict.schema.json": _SCHEMA,
    "runbook.md": _RUNBOOK,
    "cases/timelines.yaml": _CASES,
    "cases/falsifiers.yaml": _FALSIFIERS,
}

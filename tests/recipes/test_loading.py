"""Recipe files: what loads, in which order, and what is refused with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracecore.recipes import FILES, RecipeError, directory, load, load_file
from tracecore.signals.record import LAYERS

RECIPE = """\
processors:
  transform/b:
    error_mode: ignore
    log_statements:
      - context: log
        conditions:
          - IsMatch(body, "x")
        statements:
          - set(attributes["b"], 1)
          - >-
            set(attributes["c"], 2)
            where IsMatch(body, "y")
  transform/a:
    error_mode: silent
    metric_statements:
      - context: datapoint
        statements:
          - set(attributes["a"], 1)
"""


def test_processors_come_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    first, second = load_file(path)
    assert (first.name, first.signal, first.error_mode) == ("transform/b", "log", "ignore")
    assert (second.name, second.signal, second.error_mode) == ("transform/a", "metric", "silent")
    (group,) = first.groups
    assert [line.line for line in group.statements] == [9, 10]
    assert group.statements[1].text == 'set(attributes["c"], 2) where IsMatch(body, "y")'
    assert first.config() == {
        "error_mode": "ignore",
        "log_statements": [
            {
                "context": "log",
                "conditions": ['IsMatch(body, "x")'],
                "statements": [line.text for line in group.statements],
            }
        ],
    }


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ("transform/a", "batch", ":14:5: 'batch' is not a `transform/<topic>` processor"),
        ("processors:", "receivers:", ":1:1: no such key 'receivers'"),
        ("error_mode: silent", "error_mode: loud", ":14:17: 'loud' is none of ignore"),
        ("context: datapoint", "context: dataPoint", ":16:18: 'dataPoint' is none of"),
        ("metric_statements", "metrics", ":15:5: no such key 'metrics'"),
        ('set(attributes["a"], 1)', "7", ":18:13: expected a text"),
        ("transform/a", "transform/b", ":13:3: 'transform/b' is given twice"),
        ("conditions:", "condition:", ":6:9: no such key 'condition'; did you mean 'conditions'?"),
        ("processors:", "processors: [", "recipe.yaml:"),
    ],
)
def test_a_wrong_file_is_refused_at_its_line(tmp_path: Path, before: str, after: str, complaint: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE.replace(before, after, 1))
    with pytest.raises(RecipeError) as caught:
        load_file(path)
    assert str(caught.value).startswith(str(path))
    assert complaint in str(caught.value)


def test_every_layer_has_its_files() -> None:
    assert set(FILES) == set(LAYERS)
    assert load("flight_recorder") == ()
    with pytest.raises(ValueError, match="no such layer"):
        load("gossip")


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if FILES[layer]])
def test_layers_load_without_a_name_twice(layer: str) -> None:
    names = [processor.name for processor in load(layer)]
    assert names
    assert len(names) == len(set(names))


def test_worker_output_comes_before_progress() -> None:
    names = [processor.name for processor in load("stdout")]
    assert names.index("transform/cuda_oom") < names.index("transform/progress")


@pytest.mark.parametrize("path", sorted(directory().glob("*[!s].yaml")), ids=lambda path: path.name)
def test_errors_are_ignored_as_in_the_collector(path: Path) -> None:
    assert {processor.error_mode for processor in load_file(path)} <= {"ignore", "silent"}

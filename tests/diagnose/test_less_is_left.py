"""The same failures where nobody wrote down how the processes ended, or the ranks share one log."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tracecore.diagnose.offline import diagnose

INCIDENTS = Path(__file__).resolve().parents[2] / "examples" / "incidents"
#: How a process ended is all that tells: it says nothing before it is killed, or hangs where it might as well go on.
ONLY_THE_STATUS_TELLS = {
    "aborted_one", "bootstrap_missing_rank", "bus_error", "cgroup_kill", "checkpoint_stuck", "ckpt_barrier_hang",
    "divides_in_c", "ended_one", "jax_init_timeout", "leaves_with_seven", "nccl_rank_sigkill", "nobody_listens",
    "says_goodbye", "says_it_in_a_line", "sigterm",
}  # fmt: skip
WITH_STATUS = sorted(path.parent.name for path in INCIDENTS.glob("*/exit_codes.json"))
#: Hangs, crashes and healthy runs whose lines have times, so that it is known how they would lie in one log.
SHARED = ("mesh_hang", "assert_in_one", "slow_rank", "two_stop", "oom_is_logged", "noisy_and_well", "cache_is_full")

_CLOCK = re.compile(rb"(\d\d:\d\d:\d\d)")


def _agrees(bundle: Path, truth: dict[str, Any], *others: list[int]) -> None:
    """Assert that the answer is the truth; `others` are ranks that may be named as well."""
    incidents = diagnose([bundle]).document()["incidents"]
    roots = [incident["root_cause"]["pattern"] for incident in incidents if incident["root_cause"]]
    assert roots[:1] == [] if not truth["root_patterns"] else roots[0] in truth["root_patterns"]
    assert (incidents[0]["suspects"]["ranks"] if incidents else []) in (truth["culprit_ranks"], *others)
    assert (incidents[0]["failure"]["class"] if incidents else "none") in truth["failure_classes"]


@pytest.mark.parametrize("scenario", [name for name in WITH_STATUS if name not in ONLY_THE_STATUS_TELLS])
def test_without_exit_codes(scenario: str, tmp_path: Path) -> None:
    left = shutil.ignore_patterns("exit_codes.json", "truth.json")
    bundle = shutil.copytree(INCIDENTS / scenario, tmp_path / scenario, ignore=left)
    alone = len(json.loads((INCIDENTS / scenario / "exit_codes.json").read_text())) == 1
    # Only the list of ends says that a rank 0 has no peers.
    _agrees(bundle, json.loads((INCIDENTS / scenario / "truth.json").read_text()), *([[0]] if alone else []))


@pytest.mark.parametrize("label", ["[rank%d]: ", "%d: "])
@pytest.mark.parametrize("scenario", SHARED)
def test_all_ranks_in_one_log(scenario: str, label: str, tmp_path: Path) -> None:
    left = shutil.ignore_patterns("rank*.log", "truth.json")
    bundle = shutil.copytree(INCIDENTS / scenario, tmp_path / scenario, ignore=left)
    lines: list[tuple[bytes, int, int, bytes]] = []
    for log in INCIDENTS.glob(f"{scenario}/rank*.log"):
        rank = int(log.stem.removeprefix("rank"))
        own, time = (label % rank).encode(), b""
        for number, line in enumerate(log.read_bytes().split(b"\n")):
            found = _CLOCK.search(line[:120])
            time = max(time, found[1]) if found else time
            # What PyTorch has labelled itself, a launcher that does the same does not label again.
            lines.append((time, rank, number, line if line.startswith(own.rstrip()) else own + line))
    (bundle / "out.log").write_bytes(b"\n".join(line for _, _, _, line in sorted(lines)) + b"\n")
    _agrees(bundle, json.loads((INCIDENTS / scenario / "truth.json").read_text()))

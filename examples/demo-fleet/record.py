"""Diagnose the incidents of the demo fleet and write what `tracecore serve --demo` replays.

    .venv/bin/python examples/demo-fleet/record.py

Most of them are the recorded incidents of this repository. Faults of hardware, which cannot be recorded at will, are
those of the simulated fleet (`tracecore.simulation`), as they are told live.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Final

import msgspec
import zstandard

from tracecore.diagnose.offline import diagnose
from tracecore.simulation import run
from tracecore.simulation.fleet import DAY, SECOND, START, Fleet, RankEvent, SimulatedJob
from tracecore.simulation.plays import catalogue
from tracecore.simulation.reading import lines_of

ROOT: Final = Path(__file__).resolve().parents[2]
TARGET: Final = ROOT / "src/tracecore/server/demo/incidents.json.zst"
#: The demo puts the name of a node of its fleet here: the suspect, then its neighbours.
NODES: Final = [f"demo-node-{number}" for number in range(8)]

RECORDED: Final = (
    "incidents/nccl_hang_one_rank_missing", "incidents/fsdp8_loader_stuck", "incidents/mesh_hang",
    "incidents/two_stop", "incidents/tp_dp_flock", "incidents/spinning_kernel", "incidents/network_down",
    "incidents/nccl_rank_exception", "incidents/oom_one_rank", "incidents/fsdp_oom", "incidents/keeps_everything",
    "incidents/cgroup_oom_loader", "incidents/torchrun_cgroup_oom", "incidents/checkpoint_stuck",
    "incidents/sharded_save", "incidents/checkpoint_full", "incidents/dl_stale", "incidents/disk_answers_wrong",
    "incidents/mount_is_gone", "incidents/late_rank", "incidents/half_a_cluster", "incidents/duplicate_rank",
    "incidents/nan_in_one", "incidents/nan_raises", "incidents/exploding", "incidents/slow_rank",
    "incidents/slow_in_json", "incidents/mismatch_op", "incidents/uneven_gather", "incidents/moe_splits",
    "incidents/device_assert", "incidents/out_of_bounds", "incidents/segfault", "incidents/import_error",
    "incidents/loader_killed_then_hangs", "incidents/loader_bad_row", "incidents/preempted",
    "incidents/late_to_the_barrier", "incidents/second_node_raises", "incidents-2/experts_disagree",
    "incidents-2/sharded_save_full", "incidents-2/wrong_checkpoint", "incidents-2/loader_worker_killed",
)  # fmt: skip


def simulated() -> list[dict[str, Any]]:
    """Play each way in which a cause shows, on a job of four nodes, and keep the incident that is told."""
    found: list[dict[str, Any]] = []
    number = 0
    for cause in catalogue().causes:
        for play in cause.plays:
            for end in play.ends:
                number += 1
                if cause.planned or not play.signal:
                    continue
                slurm = end == "cancelled" or number % 2 == 0
                job = SimulatedJob(
                    name=str(480_000 + number) if slurm else f"ml/demo-{number}", id=480_000 + number, numbered=number,
                    scheduler="slurm" if slurm else "kubernetes", nodes=NODES[:4], begins=START, ends=START + DAY,
                    step_s=2.0, timeout_s=180, reported=START,
                )  # fmt: skip
                # A rank of the first node: the demo puts the suspect there.
                event = RankEvent(
                    number=number, at=START + 3600 * SECOND, slot=0, cause=cause.cause, play=play, end=end,
                    rank_share=(number % 8 + 0.5) / job.ranks,
                )  # fmt: skip
                quoted = lines_of(event, job)
                told = run.play(Fleet(nodes=4, days=1, slots=[[job]], spares=[], events=[event]), 0, 1).told
                named = [
                    one.document for one in told if one.document["root_cause"] and one.document["state"] != "resolved"
                ]
                if not named:
                    continue
                document = {
                    k: v for k, v in named[-1].items() if k not in ("state", "revision", "updated_at", "reason")
                }
                verdicts = document.pop("verdicts", [])
                document["quotes"] = [
                    {"description": who, "file": where, "lines": [{"text": text} for text in lines[:8]]}
                    for who, where, lines in quoted[:4]
                ]
                found.append(
                    {"name": f"{play.play}/{end}", "pattern": document["root_cause"]["pattern"], "ranks": job.ranks,
                     "incident": document, "verdicts": verdicts}
                )  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Write what `tracecore serve --demo` replays.")
    parser.add_argument("--simulated", action="store_true", help="play the simulator again, and keep the recordings")
    found: list[dict[str, Any]] = []
    if parser.parse_args().simulated:
        held = json.loads(zstandard.decompress(TARGET.read_bytes()))
        known = {name.rpartition("/")[2] for name in RECORDED}
        found += [one for one in held if one["name"] in known]
    else:
        for name in RECORDED:
            found += _incidents(ROOT / "examples" / name, name.rpartition("/")[2])
    found += simulated()
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    text = "[\n" + ",\n".join(msgspec.json.encode(one).decode() for one in found) + "\n]\n"
    TARGET.write_bytes(zstandard.compress(text.encode(), 19))
    for one in found:
        print(f"{one['name']:40} {one['pattern'] or '-':22} {one['ranks']:4} {one['incident']['headline'][:110]}")
    print(f"{len(found)} incidents, {TARGET.stat().st_size:,} bytes")


def _incidents(folder: Path, name: str, ranks: int = 0) -> list[dict[str, Any]]:
    text = msgspec.json.encode(diagnose([folder]).document()).decode().replace(f"{folder}/", "")
    document = json.loads(text)
    held = {verdict["verdict.id"]: verdict for verdict in document["verdicts"]}
    made = []
    for incident in document["incidents"][:1]:
        root = incident["root_cause"]
        own = [
            *([root["verdict"]] if root else []),
            *incident["explains"],
            *(one["verdict"] for one in incident["alternatives"]),
        ]
        known = [rank for row in incident["timeline"] for pair in row.get("ranks", ()) for rank in pair]
        made.append(
            {
                "name": name,
                "pattern": root["pattern"] if root else "",
                "ranks": ranks or max([*known, *incident["suspects"]["ranks"], 3]) + 1,
                "incident": incident,
                "verdicts": [held[one] for one in own[:8] if one in held],
            }
        )
    return made


if __name__ == "__main__":
    main()

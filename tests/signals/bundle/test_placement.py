"""Where ranks run: what files say of it, and what is left where they disagree."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracecore.signals.bundle import place_statements
from tracecore.signals.bundle.discovery import discover
from tracecore.signals.bundle.placement import Placement

DMESG = "[Mon May  4 03:04:07 2026] usb 1-1: new device\n"


def placed(folder: Path, **files: str) -> Placement:
    for name, text in files.items():
        (folder / name.replace("__", ".").replace("_0_", "-")).write_text(text)
    return discover([folder]).placement


def machine_table(folder: Path, text: str, name: str = "nodes.txt") -> dict[str, tuple[int, ...]]:
    (folder / name).write_text(text)
    return discover([folder]).placement.machines


@pytest.mark.parametrize(
    "text",
    [
        "gx-1 0-3\ngx-2 4-7\n",
        "gx-1: 0 1 2 3\ngx-2: 4 5 6 7\n",
        "gx-1 ranks 0-3 (rack 7)\ngx-2 ranks 4-7\n",
        "gx-1 -> 0,1,2,3\ngx-2 -> [4,5,6,7]\n",
        "ranks 0-3 on gx-1\nranks 4-7 on gx-2\n",
        "# who runs where\nNODES=gx-[1-2]\n0-3: gx-1\n4-7: gx-2\n",
        "gx-1 slots=4\ngx-2 slots=4 max_slots=8\n",
    ],
)
def test_tables_of_machines(tmp_path: Path, text: str) -> None:
    assert machine_table(tmp_path, text) == {"gx-1": (0, 1, 2, 3), "gx-2": (4, 5, 6, 7)}


@pytest.mark.parametrize(
    "text",
    [
        "stage0: 0-3\nstage1: 4-7\n",
        "local ranks: 0-3\nglobal ranks: 4-7\n",
        "tp ranks: 0-3\ndp ranks: 4-7\n",
        "gx-1 0-3\ngx-2 3-7\n",  # a rank on two machines
        "gx-1 0-3\ngx-2 8-11\n",  # ranks that nobody has
        "gx-1 4\ngx-2 4\n",
        "gx-1 0\ngx-2 1\n",  # numbers of the machines
        "gpus: 0,1,2,3\n",
        "gx-1 slots=4\ngx-2 is down\n",
    ],
)
def test_tables_of_something_else(tmp_path: Path, text: str) -> None:
    assert machine_table(tmp_path, text, "layout.txt") == {}


def test_tables_that_contradict_each_other(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("gx-1 0-3\ngx-2 4-7\n")
    assert machine_table(tmp_path, "gx-2 0-3\ngx-1 4-7\n") == {}


def test_a_list_of_hosts_that_the_run_did_not_follow(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("INFO init rank=1 host=gx-2\n")
    assert machine_table(tmp_path, "gx-1 slots=4\ngx-2 slots=4\n", "hostfile") == {}


def test_a_table_with_fewer_ranks_than_the_run(tmp_path: Path) -> None:
    (tmp_path / "nodes.txt").write_text("gx-1 0-3\ngx-2 4-7\n")
    found = discover([tmp_path]).placement
    assert found.ranks_on("gx-2", {0, 7}) == (4, 5, 6, 7)
    assert found.ranks_on("gx-2.lan", {0, 7}) == (4, 5, 6, 7)
    assert found.ranks_on("gx-2", {0, 8}) == ()
    assert found.node_of(5, {0, 7}) == "gx-2"
    assert found.node_of(5, {0, 8}) is None
    assert found.rank_of_local("gx-2", 1, {0}) == 5
    assert found.rank_of_local("gx-2", 4, {0}) is None
    assert found.rank_of_local("gx-3", 0, {0}) is None


@pytest.mark.parametrize(
    "line",
    [
        "INFO init rank=3 local_rank=1 host=gx-2 pid=4711",
        "[dist] global rank: 3, local rank: 1, hostname: gx-2, pid: 4711",
        '{"event": "start", "rank": 3, "hostname": "gx-2", "pid": 4711}',
        "gx-2:4711:5000 [1] NCCL INFO comm 0x5f rank 3 nranks 4 cudaDev 1 busId 43000 - Init COMPLETE",
        "gx-2:4711:5000 [1] NCCL INFO ncclCommInitRank comm 0x5f rank 3 nRanks 4 nNodes 2 cudaDev 1 busId 43000",
    ],
)
def test_lines_in_which_a_process_says_who_it_is(tmp_path: Path, line: str) -> None:
    found = placed(tmp_path, train__log=f"starting\n{line}\nstep 1 loss 2.0\n")
    assert found.nodes == {3: "gx-2"}
    assert found.rank_of_process("gx-2", 4711, {3}) == 3
    assert found.rank_of_process("gx-3", 4711, {3}) is None
    if "busId" in line:
        assert found.rank_of_gpu("gx-2", "0000:43:00.0") == 3
        assert found.rank_of_gpu("gx-3", "0000:43:00.0") is None


@pytest.mark.parametrize(
    "line",
    [
        "WARN rank=3 connect retry host=gx-2",
        "rank=3 peer_host=gx-2",
        "rank=3 master_host=gx-2 node_rank=1",
        "node rank: 3, host: gx-2",
        "rank=3 rank=4 host=gx-2",
        "rank=3 host=gx-2 host=gx-3",
        "rank=3 host=localhost",
        "rank=x3 host=gx-2",
    ],
)
def test_lines_about_somebody_else(tmp_path: Path, line: str) -> None:
    assert placed(tmp_path, train__log=f"starting\n{line}\nstep 1 loss 2.0\n").nodes == {}


def test_a_rank_that_was_on_two_machines(tmp_path: Path) -> None:
    found = placed(tmp_path, train__log="INFO rank=3 host=gx-2 pid=41\nINFO rank=3 host=gx-4 pid=42\n")
    assert found.nodes == {}
    assert found.rank_of_process("gx-2", 41, {3}) == 3


def test_a_process_of_a_machine_that_nobody_names(tmp_path: Path) -> None:
    table = "PID STAT CMD\n4711 Rl python train.py --rank 3\n"
    found = placed(tmp_path, dmesg_gx_0_2__txt=DMESG, ps__txt=table)
    assert found.rank_of_process("gx-2", 4711, {3}) == 3
    found = placed(tmp_path, dmesg_gx_0_4__txt=DMESG)
    assert found.rank_of_process("gx-2", 4711, {3}) is None
    found = placed(tmp_path, nodes__txt="gx-1 0-2\ngx-2 3-5\n")
    assert found.rank_of_process("gx-2", 4711, {3}) == 3
    assert found.rank_of_process("gx-4", 4711, {3}) is None


def test_local_ranks_of_the_one_machine(tmp_path: Path) -> None:
    table = "PID CMD\n100 python t.py --local-rank 0\n101 python t.py --local-rank=1\n"
    found = placed(tmp_path, dmesg_gx_0_2__txt=DMESG, ps__txt=table)
    assert found.rank_of_process("gx-2", 101, {0, 1}) == 1
    assert found.rank_of_process("gx-2", 101, {0, 2}) is None  # a rank that this machine does not have
    assert found.rank_of_process("gx-2", 101, ()) is None
    found = placed(tmp_path, dmesg_gx_0_4__txt=DMESG)
    assert found.rank_of_process("gx-2", 101, {0, 1}) is None


def test_a_child_of_a_rank(tmp_path: Path) -> None:
    stuck = (
        "[Mon May  4 03:07:01 2026] INFO: task pt_data_worker:22940 blocked for more than 120 seconds.\n"
        "[Mon May  4 03:07:01 2026] task:pt_data_worker  state:D stack:0     pid:22940 ppid:22013  flags:0x00004006\n"
    )
    found = placed(tmp_path, dmesg_gx_0_2__txt=stuck, pids__txt="rank 0: pid 22010\nrank 3: pid 22013\n")
    assert found.rank_of_process("gx-2", 22940, {0, 3}) == 3
    assert found.rank_of_process("gx-2", 22941, {0, 3}) is None


def test_processes_on_gpus(tmp_path: Path) -> None:
    rows = (
        "rank,host,pid,gpu_bus_id\n0,gx-1,70,00000000:43:00.0\n1,gx-2,80,00000000:43:00.0\n2,gx-2,81,00000000:52:00.0\n"
    )
    found = placed(tmp_path, ranks__csv=rows)
    assert found.rank_of_gpu("gx-2", "0000:43:00.0") == 1
    assert found.rank_of_gpu("gx-1", "0000:43:00.0") == 0
    assert found.rank_of_gpu(None, "0000:52:00.0") is None  # of one of two machines
    assert found.rank_of_gpu("gx-2", "0000:61:00.0") is None
    shared = placed(tmp_path, ranks__csv=f"{rows}3,gx-2,82,00000000:43:00.0\n")
    assert shared.rank_of_gpu("gx-2", "0000:43:00.0") is None


def test_communicators_of_some_ranks(tmp_path: Path) -> None:
    line = "gx-{0}:8{1}:900 [{1}] NCCL INFO comm 0x5f rank {2} nranks {3} cudaDev {1} busId {1}3000 - Init COMPLETE\n"
    pairs = "".join(line.format(host, dev, dev, 2) for host in (1, 2) for dev in (0, 1))
    assert placed(tmp_path, train__log=pairs).nodes == {}
    whole = "".join(line.format(host, dev, 2 * host - 2 + dev, 4) for host in (1, 2) for dev in (0, 1))
    assert placed(tmp_path, train__log=pairs + whole).nodes == {0: "gx-1", 1: "gx-1", 2: "gx-2", 3: "gx-2"}


@pytest.mark.parametrize(
    ("tasks", "nodes"),
    [
        ("srun: error: gx-1: tasks 0-1: Terminated\nsrun: error: gx-2: task 2: Exited with exit code 1\n", 3),
        # One task for each machine is a launcher.
        ("srun: error: gx-1: task 0: Terminated\nsrun: error: gx-2: task 1: Exited with exit code 1\n", 0),
        ("torchrun\nsrun: error: gx-1: tasks 0-1: Terminated\nsrun: error: gx-2: tasks 2-3: Killed\n", 0),
    ],
)
def test_tasks_of_srun(tmp_path: Path, tasks: str, nodes: int) -> None:
    assert len(placed(tmp_path, train__log=f"step 1 loss 2.0\n{tasks}").nodes) == nodes


def test_pods_by_the_logs_that_are_called_like_them(tmp_path: Path) -> None:
    step = "[2026-05-04 03:01:00] step 1 loss 2.0\n"
    (tmp_path / "worker-0.log").write_text(step)
    (tmp_path / "worker-5.log").write_text(step)
    found = discover([tmp_path]).placement
    assert found.ranks_of_pod("seg-worker-5", ["seg-worker-0", "seg-worker-5"]) == (5,)
    assert found.ranks_of_pod("seg-worker-5", ["ocr-worker-5", "seg-worker-5"]) == ()
    assert found.ranks_of_pod("seg-worker-5", ["seg-master-0", "seg-worker-5"]) == ()
    assert found.ranks_of_pod("seg-worker-6", ["seg-worker-6"]) == ()


def test_pods_that_a_file_gives_a_rank(tmp_path: Path) -> None:
    found = placed(tmp_path, env__txt="ner-master-0 RANK=0\nner-worker-0 RANK=1\nWORLD_SIZE=2\n")
    assert found.pods == {"ner-master-0": (0,), "ner-worker-0": (1,)}


def test_machines_of_pods(tmp_path: Path) -> None:
    found = placed(
        tmp_path,
        events__txt="LAST SEEN   TYPE     REASON      OBJECT      MESSAGE\n"
        "16m         Normal   Scheduled   pod/gem-2   Successfully assigned nlp/gem-2 to tp-19\n",
        pods__txt="NAME    STATUS   NODE\ngem-0   Error    tp-11\ngem-1   Error    <none>\n",
        describe__txt="Name:         gem-3\nNamespace:    nlp\nNode:         tp-20/10.0.3.4\nContainers:\n  main:\n",
    )
    assert found.pod_nodes == {"gem-0": "tp-11", "gem-2": "tp-19", "gem-3": "tp-20"}


@pytest.mark.parametrize("row", ["n{} ranks 0-1000000\n", "n{} ranks 0-9999\n", "n{} slots=999\n"])
def test_a_table_of_more_ranks_than_any_job_has_is_none(tmp_path: Path, row: str) -> None:
    text = "".join(row.format(number) for number in range(2000))
    assert machine_table(tmp_path, text) == {}


def test_statements_that_are_left_out_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place_statements, "ROOM", 10)
    for number in range(2):
        (tmp_path / f"nodes{number}.txt").write_text("gx-1 0-2\ngx-2 3-5\n")
    bundle = discover([tmp_path])
    assert bundle.placement.machines == {"gx-1": (0, 1, 2), "gx-2": (3, 4, 5)}
    (left,) = bundle.skipped
    assert "places of ranks" in left.reason

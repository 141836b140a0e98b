"""Where ranks run, where no file has it by itself: what several files give together, and what they must not give."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracecore.signals.bundle.discovery import Bundle, discover
from tracecore.signals.bundle.placement import Placement
from tracecore.signals.bundle.seats import Seat, joined

INIT = "{0}:{1}:9{1} [{2}] NCCL INFO comm 0x5f rank {3} nranks {4} cudaDev {2} busId {5}000 - Init COMPLETE\n"
STEP = "[2026-05-04 03:01:00] step 1 loss 2.0\n"
DMESG = "[Mon May  4 03:04:07 2026] usb 1-1: new device\n"


def pods(*rows: tuple[str, str]) -> str:
    lines = [
        f"{name:<13} 1/1     Running   0          3h    10.2.0.{n}   {node}\n" for n, (name, node) in enumerate(rows)
    ]
    return f"{'NAME':<13} READY   STATUS    RESTARTS   AGE   IP         NODE\n" + "".join(lines)


PODS = pods(("llm-0", "gx-07.dc.example"), ("llm-1", "gx-02.dc.example"))


def bundle(folder: Path, **files: str) -> Bundle:
    """Names of files have `__` for a dot, `_in_` for a slash and `_` for a hyphen."""
    for name, text in files.items():
        path = folder / name.replace("__", ".").replace("_in_", "/").replace("_", "-")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return discover([folder])


def placed(folder: Path, **files: str) -> Placement:
    return bundle(folder, **files).placement


def machines(folder: Path, **files: str) -> dict[str, tuple[int, ...]]:
    return placed(folder, **files).machines


def test_seats_that_share_a_name_share_the_rest() -> None:
    seats = [
        Seat(rank=3, pod="llm-0", gpu="0000:4f:00.0"),
        Seat(pod="llm-0", gpu="0000:4f:00.0", pid=77, inside=True),
        Seat(node="gx-07", local=3, rank=3),
        Seat(node="gx-07", local=3),
    ]
    joined(seats, {"llm-0": "gx-07"})
    assert [seat.rank for seat in seats] == [3, 3, 3, 3]
    assert {seat.node for seat in seats} == {"gx-07"}
    assert seats[2].gpu == "0000:4f:00.0"


def test_two_ranks_of_one_name_give_it_none() -> None:
    seats = [Seat(rank=1, node="a", gpu="x"), Seat(rank=2, node="a", gpu="x"), Seat(node="a", gpu="x", pid=5)]
    joined(seats, {})
    assert seats[2].rank is None


def test_a_gpu_of_a_machine_by_the_pod_that_nccl_names(tmp_path: Path) -> None:
    lines = "".join(
        INIT.format(f"llm-{pod}", 70 + gpu, gpu, 2 * (1 - pod) + gpu, 4, f"{4 + gpu}3")
        for pod in (0, 1)
        for gpu in (0, 1)
    )
    found = placed(tmp_path, nccl__txt=lines, pods__txt=PODS)
    assert found.rank_of_gpu("gx-02", "0000:53:00.0") == 1
    assert found.rank_of_gpu("gx-07", "0000:43:00.0") == 2
    assert found.nodes[3] == "gx-07.dc.example"
    assert found.ranks_on("gx-07", {0, 3}) == (2, 3)
    assert found.ranks_of_pod("llm-1", []) == (0, 1)


def test_a_pod_that_is_called_otherwise_inside(tmp_path: Path) -> None:
    table = pods(("run-0-x7k2m", "gx-07"), ("run-1-p4q8z", "gx-02.dc.example"))
    found = placed(tmp_path, nccl__txt=INIT.format("run-1", 70, 0, 5, 8, 43), pods__txt=table)
    assert found.nodes == {5: "gx-02.dc.example"}


POD = """{{"metadata": {{"name": "ft-{0}", "namespace": "ml", "uid": "u-{0}"}}, "spec": {{"nodeName": "gx-0{0}",
"containers": [{{"name": "c", "env": [{{"name": "{1}", "value": "{0}"}},
{{"name": "PET_NPROC_PER_NODE", "value": "4"}}]}}]}},
"status": {{"podIP": "10.2.0.{0}"}}}}"""


@pytest.mark.parametrize("name", ["NODE_RANK", "PET_NODE_RANK", "RANK", "JOB_COMPLETION_INDEX"])
def test_pods_that_start_several_processes(tmp_path: Path, name: str) -> None:
    items = ",\n".join(POD.format(number, name) for number in (1, 2))
    found = placed(tmp_path, pods__json=f'{{"apiVersion": "v1", "kind": "List", "items": [{items}]}}')
    assert found.ranks_of_pod("ft-2", []) == (8, 9, 10, 11)
    assert found.nodes[4] == "gx-01"
    assert found.uids == {"u-1": "ml/ft-1", "u-2": "ml/ft-2"}


def test_pods_in_a_row(tmp_path: Path) -> None:
    table = pods(*[(f"tt-worker-{n}", f"gx-0{n}") for n in range(4)])
    log = STEP + "+ torchrun --nnodes=4 --nproc-per-node=2 --node-rank={0} train.py\nlocal_rank: 1\n"
    files = {"pods__txt": table, "tt_worker_2__log": log.format(2)}
    assert placed(tmp_path, **files).ranks_of_pod("tt-worker-3", []) == (6, 7)
    files["tt_worker_2__log"] = log.format(1)
    assert placed(tmp_path, **files).ranks_of_pod("tt-worker-3", []) == ()  # the launcher counts otherwise


def test_pods_that_a_table_numbers(tmp_path: Path) -> None:
    table = "POD        IDX   NODE\nft-0-aaaaa  0     gx-04\nft-1-bbbbb  1     gx-09\n# torchrun --nproc-per-node 2\n"
    assert placed(tmp_path, topology__txt=f"$ kubectl get pods -o custom-columns=POD:.x\n{table}").nodes == {
        0: "gx-04", 1: "gx-04", 2: "gx-09", 3: "gx-09",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ring__rf", "# by hand\nrank 0=gx-1 slot=0:0-7\nrank 1=gx-1 slot=1\nrank 2=gx-2 slot=0\nrank 3=gx-2 slot=1\n"),
        ("pbs_nodefile", "gx-1\ngx-1\ngx-2\ngx-2\n"),
        ("hostfile", "gx-1:2\ngx-2:2\n"),
        ("run__out", "+ horovodrun -np 4 -H gx-1:2,gx-2:2 python train.py\n"),
        ("ds__log", "[launch.py:164:main] global_rank_mapping=defaultdict(<x>, {'gx-1': [0, 1], 'gx-2': [2, 3]})\n"),
        ("env__txt", "== gx-1\nNODE_RANK=0\nNPROC_PER_NODE=2\n## gx-2 (task 1)\nNODE_RANK=1\nNPROC_PER_NODE=2\n"),
        ("job__txt", "SLURM_JOB_NODELIST=gx-[1-2]\nSLURM_NTASKS_PER_NODE=2\n"),
        ("sbatch__txt", "#SBATCH --ntasks-per-node=2\n   NodeList=gx-[1-2]\n"),
        ("tasks__txt", "SLURM_JOB_NODELIST=gx-[1-2]\nSLURM_TASKS_PER_NODE=2(x2)\n"),
        ("total__txt", "SLURM_JOB_NODELIST=gx-[1,2]\nSLURM_NTASKS=4\n"),
        ("said__out", "job 7 on gx-[1-2], 2 ranks per node (block)\n" + STEP),
    ],
)  # fmt: skip
def test_lists_of_machines_give_their_ranks(tmp_path: Path, name: str, text: str) -> None:
    assert machines(tmp_path, **{name: text}) == {"gx-1": (0, 1), "gx-2": (2, 3)}


TWO = "SLURM_JOB_NODELIST=gx-[1-2]\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{TWO}SLURM_NTASKS_PER_NODE=2\nSLURM_DISTRIBUTION=cyclic\n", {"gx-1": (0, 2), "gx-2": (1, 3)}),
        ("SLURM_JOB_NODELIST=gx-[1-2]\nSLURM_TASKS_PER_NODE=1,3\n", {"gx-1": (0,), "gx-2": (1, 2, 3)}),
        (f"{TWO}SLURM_TASKS_PER_NODE=1,3\nSLURM_DISTRIBUTION=cyclic\n", {"gx-1": (0,), "gx-2": (1, 2, 3)}),
        ("SLURM_JOB_NODELIST=gx-[1-2]\nSLURM_NTASKS_PER_NODE=2\nSLURM_DISTRIBUTION=plane\n", {}),
        ("SLURM_JOB_NODELIST=gx-[1-2]\nSLURM_NTASKS_PER_NODE=2\nSLURM_NODELIST=gx-[3-4]\n", {}),
        ("SLURM_JOB_NODELIST=gx-[1-2]\nSLURM_NTASKS_PER_NODE=2\nSLURM_TASKS_PER_NODE=4(x2)\n", {}),
        ("SLURM_JOB_NODELIST=gx-[1-2]\nSLURM_NTASKS=3\n", {}),
        # A launcher on each machine may take them in another order, unless a rank on another than the first says so.
        ("SLURM_JOB_NODELIST=gx-[1-2]\nSLURM_NTASKS_PER_NODE=1\n+ torchrun --nproc_per_node=2 train.py\n", {}),
    ],
)  # fmt: skip
def test_layouts_of_a_scheduler(tmp_path: Path, text: str, expected: dict[str, tuple[int, ...]]) -> None:
    assert machines(tmp_path, env__txt=text) == expected


@pytest.mark.parametrize(
    ("said", "holds"), [("rank=3 host=gx-2", True), ("rank=1 host=gx-1", False), ("rank=2 host=gx-1", False)]
)
def test_a_layout_that_somebody_confirms(tmp_path: Path, said: str, holds: bool) -> None:
    script = "SLURM_JOB_NODELIST=gx-[1-2]\nSLURM_NTASKS_PER_NODE=1\n+ torchrun --nproc_per_node=2 train.py\n"
    found = machines(tmp_path, env__txt=script, train__log=f"INFO init {said}\n")
    assert (found == {"gx-1": (0, 1), "gx-2": (2, 3)}) == holds


def test_a_layout_that_the_run_did_not_follow(tmp_path: Path) -> None:
    script = "SLURM_JOB_NODELIST=gx-[1-2]\nSLURM_NTASKS_PER_NODE=2\n"
    assert machines(tmp_path, env__txt=script, train__log="INFO init rank=1 host=gx-2\n") == {}


@pytest.mark.parametrize(
    "words",
    ['--exclude="gx-2"', "--exclude gx-2", "--include=gx-1@gx-3", "Running on the following workers: gx-1,gx-3"],
)
def test_machines_that_a_launcher_leaves_out(tmp_path: Path, words: str) -> None:
    found = machines(
        tmp_path, hostfile="gx-1 slots=2\ngx-2 slots=4\ngx-3 slots=2\n", run__log=f"deepspeed {words} t.py\n"
    )
    assert found == {"gx-1": (0, 1), "gx-3": (2, 3)}


def test_the_rows_of_torchelastics_table(tmp_path: Path) -> None:
    table = (
        "Failures:\n[1]:\n  time      : 2026-05-04_03:01:09\n  host      : gx-2.lan\n  rank      : 5 (local_rank: 1)\n"
        "  exitcode  : 1 (pid: 812)\n"
    )
    found = placed(tmp_path, train__log=STEP + table)
    assert found.nodes == {5: "gx-2.lan"}
    assert found.rank_of_process("gx-2", 812, {5}) == 5


def test_a_process_that_says_who_it_is_in_the_log_of_its_rank(tmp_path: Path) -> None:
    found = placed(
        tmp_path, rank_3__log="[3/6] host=gx-2 pid=812 local=1\n", rank_0__log="[0/6] host=gx-1 pid=812 local=0\n"
    )
    assert found.rank_of_process("gx-2", 812, {0, 3}) == 3
    assert found.rank_of_process("gx-1", 812, {0, 3}) == 0


AGENT = "Rendezvous complete for workers. Result:\n  global_ranks=[{0}, {1}]\n"


def test_logs_of_local_ranks_around_their_launchers(tmp_path: Path) -> None:
    found = bundle(
        tmp_path,
        fn_east_3_in_agent__log=AGENT.format(2, 3),
        fn_east_3_in_x_in_attempt_0__txt="",
        fn_east_1_in_agent__log=AGENT.format(6, 7) + "remote peer fn-east-3.pool.example<40112>\n",
    )
    for host in ("fn-east-3", "fn-east-1"):
        folder = tmp_path / host / "none_a1" / "attempt_0" / "1"
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text("Traceback (most recent call last):\n")
    found = discover([tmp_path])
    logs = {stream.path: stream.resource for stream in found.streams if stream.path.endswith("stderr.log")}
    assert {log["gen_ai.training.rank"] for log in logs.values()} == {3, 7}
    assert {log["host.name"] for log in logs.values()} == {"fn-east-3", "fn-east-1"}


def test_settings_of_accelerate(tmp_path: Path) -> None:
    found = bundle(
        tmp_path,
        gx_2_in_accelerate__yaml="machine_rank: 2\nnum_machines: 4\nnum_processes: 8\n",
        gx_2_in_train__stderr=STEP,
        gx_0_in_train__stderr=STEP,
    )
    ranks = {
        stream.path.rpartition("/")[0][-4:]: stream.machine_ranks for stream in found.streams if "train" in stream.path
    }
    assert ranks == {"gx-2": (4, 5), "gx-0": ()}


def test_a_log_that_nccl_writes_for_one_process(tmp_path: Path) -> None:
    found = bundle(
        tmp_path, nccl__a__log=INIT.format("gx-2", 812, 1, 5, 8, 43), nccl__b__log=INIT.format("gx-1", 90, 0, 0, 8, 53)
    )
    assert {(s.resource["gen_ai.training.rank"], s.resource["host.name"]) for s in found.streams} == {
        (5, "gx-2"),
        (0, "gx-1"),
    }


@pytest.mark.parametrize(("words", "rank"), [("", 3), ("srun --gpu-bind=map_gpu:1,0 python t.py\n", None)])
def test_a_gpu_by_its_number(tmp_path: Path, words: str, rank: int | None) -> None:
    csv = "index, pci.bus_id, temperature.gpu\n0, 00000000:1B:00.0, 37\n1, 00000000:43:00.0, 38\n"
    slurm = f"SLURM_JOB_NODELIST=gx-[1-2]\nSLURM_NTASKS_PER_NODE=2\n{words}"
    found = placed(tmp_path, dmesg_gx_2__txt=DMESG, gx_2_nvidia_smi__csv=csv, env__txt=slurm)
    assert found.rank_of_gpu("gx-2", "0000:43:00.0", {0, 3}) == rank
    assert found.rank_of_gpu("gx-1", "0000:43:00.0", {0, 3}) is None


def test_a_console_is_of_the_machine_that_it_is_called_after(tmp_path: Path) -> None:
    found = bundle(
        tmp_path, hostfile="gx-1 slots=2\ngx-3 slots=2\n", netconsole_in_gx_3__log=DMESG, dmesg_gx_1__txt=DMESG
    )
    hosts = {stream.path.rpartition("/")[2]: stream.resource.get("host.name") for stream in found.streams}
    assert hosts["gx-3.log"] == "gx-3"
    assert hosts["dmesg-gx-1.txt"] == "gx-1"


def test_folders_that_are_numbered_and_no_machines(tmp_path: Path) -> None:
    found = bundle(tmp_path, resnet50_in_a__log=STEP, resnet101_in_a__log=STEP)
    assert not any("host.name" in stream.resource for stream in found.streams)


def test_the_log_of_a_pod_by_the_command_above_it(tmp_path: Path) -> None:
    table = pods(*[(f"unet-{n}-aaaa{n}", f"gx-0{n}") for n in range(3)])
    log = "$ kubectl logs -n geo unet-{0}-aaaa{0} --tail=50\nRANK={0} WORLD_SIZE=3\n" + STEP
    found = bundle(tmp_path, pods__txt=table, index0__txt=log.format(0), index1__txt=log.format(1))
    logs = {s.resource["k8s.pod.name"]: s.resource for s in found.streams if s.layer == "stdout"}
    assert logs["unet-1-aaaa1"]["gen_ai.training.rank"] == 1
    assert logs["unet-1-aaaa1"]["k8s.namespace.name"] == "geo"
    assert logs["unet-1-aaaa1"]["k8s.node.name"] == "gx-01"
    assert found.placement.nodes == {0: "gx-00", 1: "gx-01", 2: "gx-02"}


def test_pods_without_a_header(tmp_path: Path) -> None:
    row = "asr-worker-{0}   1/1   Running   0   5h12m   10.0.3.{0}   gx-0{0}   <none>   <none>\n"
    rows = "".join(row.format(number) for number in range(3))
    found = bundle(tmp_path, pods__txt=f"$ kubectl get po -n speech -o wide | grep asr\n{rows}", worker_2__log=STEP)
    assert found.placement.pod_nodes["asr-worker-2"] == "gx-02"
    (log,) = (stream for stream in found.streams if stream.layer == "stdout")
    assert log.resource["k8s.node.name"] == "gx-02"


def test_a_pod_of_several_ranks_is_none_of_them(tmp_path: Path) -> None:
    text = "torchrun --nnodes=4 --nproc-per-node=8 --node-rank=2 train.py\n[rank 16] saving checkpoint\n"
    (log,) = bundle(tmp_path, worker_2__log=text).streams
    assert "gen_ai.training.rank" not in log.resource
    assert log.machine_ranks == tuple(range(16, 24))


def failed(*rows: tuple[str, int, int], label: str = "") -> str:
    """torchelastic's table of failures."""
    lines = [
        f"{label}[0]:\n{label}  host      : {host}\n{label}  rank      : {rank} (local_rank: {local})\n"
        f"{label}  exitcode  : 1 (pid: {900 + rank})\n"
        for host, rank, local in rows
    ]
    return STEP + "".join(lines)


@pytest.mark.parametrize(
    ("rows", "nodes"),
    [
        # Rank 2 is between two ranks of the machine, and hangs.
        ([("gx-01", 0, 0), ("gx-01", 1, 1), ("gx-01", 3, 3)], {0: "gx-01", 1: "gx-01", 2: "gx-01", 3: "gx-01"}),
        ([("gx-01", 3, 3)], {0: "gx-01", 1: "gx-01", 2: "gx-01", 3: "gx-01"}),
        # Ranks go through the machines in turns, or may do so.
        ([("gx-01", 0, 0), ("gx-01", 4, 2)], {0: "gx-01", 4: "gx-01"}),
        ([("gx-01", 4, 2)], {4: "gx-01"}),
        ([("gx-01", 0, 0)], {0: "gx-01"}),
        ([("gx-01", 0, 0), ("gx-02", 1, 0), ("gx-01", 3, 3)], {0: "gx-01", 1: "gx-02", 3: "gx-01"}),
    ],
)
def test_ranks_beside_those_that_are_placed(
    tmp_path: Path, rows: list[tuple[str, int, int]], nodes: dict[int, str]
) -> None:
    assert placed(tmp_path, launch__log=failed(*rows)).nodes == nodes


def test_all_ranks_that_a_launcher_starts_beside_one(tmp_path: Path) -> None:
    log = "+ torchrun --nnodes=2 --nproc-per-node=4 train.py\n" + failed(("gx-02", 6, 2))
    assert placed(tmp_path, launch__log=log).nodes == dict.fromkeys(range(4, 8), "gx-02")


def test_the_machine_of_which_nothing_is_known_in_a_list(tmp_path: Path) -> None:
    """srun tells of the tasks of three machines of four: those of the fourth are the others."""
    ended = "".join(
        f"srun: error: gx-{name}: tasks {first}-{first + 3}: Aborted\n"
        for name, first in (("07", 0), ("08", 4), ("12", 12))
    )
    output = "NODES=gx-[07-08,11-12]\n" + STEP
    assert machines(tmp_path, slurm_8__out=output, slurm_8__err=ended)["gx-11"] == (8, 9, 10, 11)


def test_the_machines_that_sacct_lists(tmp_path: Path) -> None:
    ended = "srun: error: gx-07: tasks 0-3: Aborted\nsrun: error: gx-12: tasks 12-15: Aborted\n"
    table = (
        "JobID        State     ExitCode NodeList\n------------ --------- -------- -----------------\n"
        "8            NODE_FAIL      0:0 gx-[07-08,11-12]\n"
    )
    assert machines(tmp_path, slurm_8__err=ended, sacct__txt=table)["gx-08"] == (4, 5, 6, 7)
    other = ended.replace("12-15", "8-11")
    assert machines(tmp_path, slurm_8__err=other, sacct__txt=table) == {}  # they follow another order


def test_tasks_that_are_launchers(tmp_path: Path) -> None:
    """srun labels lines with the number of a task, which starts several ranks."""
    lines = (
        "{0}: W1106 10:00:00.1 {1} torch/distributed/run.py:792] Setting OMP_NUM_THREADS environment variable for each "
        "process to be 1\n{0}: step 1 loss 2.0\n{0}: [rank{2}]: ValueError: x\n"
    )
    log = lines.format(0, 70, 1) + lines.format(1, 71, 5) + failed(("gx-02", 5, 1), label="1: ").partition("\n")[2]
    found = bundle(tmp_path, slurm_8__out=log + "srun: error: gx-01: task 0: Exited with exit code 1\n")
    (stream,) = found.of("text")
    assert (stream.wrapping, stream.tasks, stream.launchers) == ("tasks", {"0": "gx-01", "1": "gx-02"}, 2)
    assert found.placement.nodes[5] == "gx-02"


def test_tasks_that_are_ranks(tmp_path: Path) -> None:
    log = "".join(f"{rank}: step 1 loss 2.0\n{rank}: [rank{rank}]: ValueError: x\n" for rank in range(4))
    (stream,) = bundle(tmp_path, slurm_8__out=log).of("text")
    assert stream.wrapping == "srun"


def test_files_that_are_called_after_a_launchers_hosts(tmp_path: Path) -> None:
    """`gpu03` may be the number of a GPU, but not where a list of hosts has it."""
    hosts = "10.2.0.1 gpu01 slots=8\n10.2.0.2 gpu02 slots=8\n"
    found = bundle(tmp_path, hosts__txt=hosts, logs_in_launch_gpu02__log=STEP)
    assert {stream.resource.get("host.name") for stream in found.of("text")} >= {"gpu02"}
    alone = bundle(tmp_path / "b", logs_in_launch_gpu02__log=STEP)
    assert [stream.resource.get("host.name") for stream in alone.of("text")] == [None]


def test_a_comment_above_a_list_of_hosts_is_no_title(tmp_path: Path) -> None:
    found = machines(tmp_path, hostfile="# rack12\ngx-1 slots=2\ngx-2 slots=2\n", dmesg_gx_2__txt=DMESG)
    assert found == {"gx-1": (0, 1), "gx-2": (2, 3)}


def test_a_table_below_each_machine(tmp_path: Path) -> None:
    ps = "== 10.2.0.7 ==\n  PID LRANK STAT CMD\n 4411 0     Sl   python t.py\n 4413 1     D    python t.py\n"
    found = placed(tmp_path, ps__txt=ps, run__log="horovodrun -np 4 -H 10.2.0.6:2,10.2.0.7:2 python t.py\n")
    assert found.rank_of_process("10.2.0.7", 4413, {0}) == 3


@pytest.mark.parametrize(("each", "rank"), [(2, 3), (1, None)])
def test_tasks_are_ranks_if_a_machine_has_several(tmp_path: Path, each: int, rank: int | None) -> None:
    rows = [f"{task} gx-{task // each + 1} {7000 + task} {task % each}\n" for task in range(2 * each)]
    found = placed(tmp_path, tasks__txt="TASK NODE PID LOCALID\n" + "".join(rows), dmesg_gx_2__txt=DMESG)
    assert found.rank_of_process("gx-2", 7003, {0}) == rank


@pytest.mark.parametrize(("last", "rank"), [(4, 5), (2, None)])
def test_a_rank_on_each_gpu_of_a_machine(tmp_path: Path, last: int, rank: int | None) -> None:
    csv = "".join(f"{number}, 00000000:{number + 1}B:00.0, 37\n" for number in range(4))
    found = bundle(
        tmp_path,
        rank0__log=f"[rank0] rank=0 host=gx-1\n{STEP}",
        **{f"rank{last}__log": f"[rank{last}] rank={last} host=gx-2\n{STEP}"},
        gx_2_nvidia_smi__csv=f"index, pci.bus_id, temperature.gpu\n{csv}",
        dmesg_gx_2__txt=DMESG,
    ).placement
    assert found.rank_of_gpu("gx-2", "0000:2b:00.0", {0, last}) == rank

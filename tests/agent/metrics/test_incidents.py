"""From the text of scrapes and kernel lines to verdicts; nothing from what is healthy."""

from __future__ import annotations

import json
import random
import shutil
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest

from tracecore.diagnose import metrics
from tracecore.diagnose.metrics import MetricFacts
from tracecore.diagnose.offline import diagnose
from tracecore.facts.fact import Fact
from tracecore.facts.gpu import (
    EccDelta,
    FramebufferSample,
    NvlinkRate,
    PcieRateCollapse,
    SdcCounter,
    ThrottleSample,
    XidGauge,
)
from tracecore.facts.memory import CudaOom
from tracecore.facts.network import PortState
from tracecore.facts.training import Progress
from tracecore.incidents.diagnosis import Diagnosis
from tracecore.signals.bundle import reading
from tracecore.signals.bundle.discovery import discover
from tracecore.signals.stream import Counters

ROOT = Path(__file__).resolve().parents[3]
SCRAPES = range(0, 600, 15)
XID_48 = "NVRM: Xid (PCI:0000:3a:00): 48, pid=4242, name=python, Double Bit ECC Error"
XID_74 = "NVRM: Xid (PCI:0000:5d:00): 74, pid=4242, name=python, NVLink: fatal error detected on link 2(0x10000, 0x0)"
AER = "nvidia 0000:2a:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.11 GiB total capacity)"

Change = Callable[[float, int, float], "float | None"]


class Bundle(Protocol):
    path: Path

    def scrapes(self, text: Callable[[float], str], seconds: Any, name: str = "dcgm") -> Bundle: ...
    def kernel(self, *lines: tuple[float, str], host: str = "node-7") -> Bundle: ...
    def file(self, name: str, text: str) -> Bundle: ...


@pytest.fixture
def dcgm(request: pytest.FixtureRequest) -> Callable[..., str]:
    found: Callable[..., str] = request.getfixturevalue("exporters").dcgm
    return found


@pytest.fixture
def ports(request: pytest.FixtureRequest) -> Callable[..., str]:
    found: Callable[..., str] = request.getfixturevalue("exporters").ports
    return found


def patterns(diagnosis: Diagnosis) -> list[str]:
    return [emission.verdict.pattern_name for emission in diagnosis.verdicts]


def of(diagnosis: Diagnosis, kind: type[Fact]) -> list[Any]:
    return [fact for fact in diagnosis.facts if type(fact) is kind]


def since(second: float, gpu: int, value: float) -> Change:
    return lambda t, which, usual: value if which == gpu and t >= second else usual


# -- each pattern ------------------------------------------------------------------------------------------------------

ECC = {"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": since(305, 2, 1), "DCGM_FI_DEV_XID_ERRORS": since(305, 2, 48)}
HOT = {
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": since(300, 5, 0x48),
    "DCGM_FI_DEV_SM_CLOCK": since(300, 5, 1215),
    "DCGM_FI_DEV_GPU_TEMP": since(285, 5, 91),
}
COUNTED_HEAT = {
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": lambda t, gpu, usual: None,
    "DCGM_FI_DEV_THERMAL_VIOLATION": lambda t, gpu, usual: 8e8 * max(0, t - 300) if gpu == 5 else 0,
    "DCGM_FI_DEV_SM_CLOCK": since(300, 5, 1215),
}
COLLAPSE = {
    f"DCGM_FI_PROF_PCIE_{way}_BYTES": lambda t, gpu, usual: usual * 0.2 if gpu == 1 and t >= 330 else usual
    for way in ("TX", "RX")
}
SLOW_LINK = {
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_L2": lambda t, gpu, usual: (
        usual - 19e9 * max(0, t - 120) if gpu == 3 else usual
    ),
}  # fmt: skip


def test_memory_errors(bundle: Bundle, dcgm: Callable[..., str]) -> None:
    """The kernel says so when it happens, the counter when it is next asked."""
    bundle.scrapes(lambda t: dcgm(t, ECC), SCRAPES).kernel((303.2, XID_48))
    found = diagnose([bundle.path])
    assert "hbm_ecc" in patterns(found)
    (rise,) = of(found, EccDelta)
    assert (rise.gpu, rise.node, rise.pod, rise.delta) == ("0000:3a:00.0", "node-7", "ml/train-0", 1)
    assert rise.source.path.endswith("dcgm-20261115T000515Z.prom")
    assert rise.source.line > 0


def test_memory_errors_that_the_exporter_learns_late(bundle: Bundle, dcgm: Callable[..., str]) -> None:
    """It asks the driver every 30 s: two scrapes after the Xid still show the counter as it was."""
    late = {"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": since(330, 2, 1)}
    bundle.scrapes(lambda t: dcgm(t, late), SCRAPES).kernel((303.2, XID_48))
    assert "hbm_ecc" in patterns(diagnose([bundle.path]))


@pytest.mark.parametrize("changes", [HOT, COUNTED_HEAT], ids=["by reason", "by counter"])
def test_heat(bundle: Bundle, dcgm: Callable[..., str], changes: Mapping[str, Change]) -> None:
    bundle.scrapes(lambda t: dcgm(t, changes), SCRAPES)
    found = diagnose([bundle.path])
    assert patterns(found) == ["thermal_throttle"]
    assert found.incidents[0].suspects.gpus == ("0000:ab:00.0",)


def test_heat_of_the_only_gpu(bundle: Bundle, dcgm: Callable[..., str]) -> None:
    hot = {name: (lambda t, gpu, usual, change=change: change(t, 5, usual)) for name, change in HOT.items()}
    hot["DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"] = lambda t, gpu, usual: 0x48 if t >= 300 else 0
    bundle.scrapes(lambda t: dcgm(t, hot, gpus=1), SCRAPES)
    assert patterns(diagnose([bundle.path])) == ["thermal_throttle"]


def test_bus_errors(bundle: Bundle, dcgm: Callable[..., str]) -> None:
    bundle.scrapes(lambda t: dcgm(t, COLLAPSE), SCRAPES).kernel((325.3, AER))
    found = diagnose([bundle.path])
    assert patterns(found) == ["pcie_aer"]
    assert {(fact.gpu, fact.direction) for fact in of(found, PcieRateCollapse)} == {
        ("0000:2a:00.0", "transmit"),
        ("0000:2a:00.0", "receive"),
    }


def test_a_slow_link(bundle: Bundle, dcgm: Callable[..., str]) -> None:
    bundle.scrapes(lambda t: dcgm(t, SLOW_LINK), SCRAPES).kernel((121, XID_74))
    found = diagnose([bundle.path])
    rates = of(found, NvlinkRate)
    assert {(fact.gpu, fact.link) for fact in rates} == {("0000:5d:00.0", 2)}
    assert rates[-1].low_s == 465
    assert "nvlink_degradation" in patterns(found)


@pytest.mark.parametrize(
    ("state", "downed"),
    [
        pytest.param(lambda t: 1 if t in (300, 345, 390) else 4, lambda t: 0, id="seen"),
        pytest.param(lambda t: 4, lambda t: 0 if t < 300 else 3, id="counted"),
    ],
)
def test_a_port_that_flaps(
    bundle: Bundle, ports: Callable[..., str], state: Callable[[float], int], downed: Callable[[float], int]
) -> None:
    bundle.scrapes(lambda t: ports(t, state, downed), SCRAPES, "node_exporter")
    found = diagnose([bundle.path])
    assert patterns(found) == ["ib_link_flap"]
    assert {(fact.node, fact.device) for fact in of(found, PortState)} == {("node-7", "mlx5_0"), ("node-7", "mlx5_1")}


def test_out_of_memory_with_the_gpus_own_numbers(bundle: Bundle, dcgm: Callable[..., str]) -> None:
    """A pod that holds one GPU: the line's ordinal 0 is that one, and its samples are the framebuffer layer."""
    bundle.scrapes(lambda t: dcgm(t, gpus=1), SCRAPES)
    folder = bundle.path / "pods" / "ml_train-0_5a6c1f0e-1111-2222-3333-444455556666" / "trainer"
    folder.mkdir(parents=True)
    (folder / "0.log").write_text(f"2026-11-15T00:05:01.5Z stderr F {OOM}\n")
    found = diagnose([bundle.path])
    (oom,) = of(found, CudaOom)
    assert oom.gpu == "0000:18:00.0"
    (verdict,) = [one.verdict for one in found.verdicts if one.verdict.pattern_name == "cuda_oom"]
    assert verdict.confidence == "full"
    assert any(isinstance(fact, FramebufferSample) for fact in verdict.evidence())


def test_out_of_memory_of_one_of_several_gpus_names_none(bundle: Bundle, dcgm: Callable[..., str]) -> None:
    bundle.scrapes(lambda t: dcgm(t, gpus=2), SCRAPES).file("rank0.log", f"2026-11-15 00:05:01 {OOM}\n")
    (oom,) = of(diagnose([bundle.path]), CudaOom)
    assert oom.gpu is None


@pytest.mark.parametrize("gpus", [1, 8])
def test_out_of_memory_of_a_pod_with_several_gpus(bundle: Bundle, dcgm: Callable[..., str], gpus: int) -> None:
    """With the operator's word that jobs count GPUs in the order of the bus; a job that goes on has survived."""
    bundle.scrapes(lambda t: dcgm(t, gpus=gpus), SCRAPES)
    log = "pods/ml_train-0_5a6c1f0e-1111-2222-3333-444455556666/trainer/0.log"
    (bundle.path / log).parent.mkdir(parents=True)
    line = OOM.replace("GPU 0;", f"GPU {gpus - 1};")
    bundle.file(log, f"2026-11-15T00:05:01.5Z stderr F {line}\n")
    (oom,) = of(diagnose([bundle.path], ordinals="pci_bus_id"), CudaOom)
    assert oom.gpu == ("0000:18:00.0" if gpus == 1 else "0000:db:00.0")
    found = diagnose([bundle.path])
    (oom,) = of(found, CudaOom)
    assert (oom.gpu is None) is (gpus == 8)
    assert found.coverage is not None
    steps = "".join(f"2026-11-15T00:05:{s:02d}.5Z stderr F step {s} loss 2.1\n" for s in range(2, 50))
    bundle.file(log, f"2026-11-15T00:05:01.5Z stderr F {line}\n{steps}")
    assert "cuda_oom" not in patterns(diagnose([bundle.path], ordinals="pci_bus_id"))


def test_steps_from_metrics(bundle: Bundle) -> None:
    """Every rank reports its step time; one takes twice as long."""

    def text(t: float) -> str:
        step = int(t // 15)
        return "".join(
            f'gen_ai_training_step{{rank="{rank}",job_id="llm"}} {step}\n'
            f'tracecore_training_iter_time_s{{rank="{rank}",job_id="llm"}} {4 if rank == 5 else 2}\n'
            for rank in range(8)
        )

    found = diagnose([bundle.scrapes(text, SCRAPES, "trainer").path])
    assert {fact.rank for fact in of(found, Progress)} == set(range(8))
    assert patterns(found) == ["straggler"]


def test_a_counter_of_silent_corruption(bundle: Bundle) -> None:
    labels = 'gpu_id="0000:3B:00.0",host_name="node-7",hw_gpu_sdc_kind="checksum"'
    bundle.scrapes(lambda t: f"hw_gpu_sdc_total{{{labels}}} {5 if t < 300 else 7}\n", SCRAPES, "vendor")
    (rise,) = of(diagnose([bundle.path]), SdcCounter)
    assert (rise.gpu, rise.node, rise.delta, rise.counter) == ("0000:3b:00.0", "node-7", 2, "checksum")


# -- what is not a fault -----------------------------------------------------------------------------------------------


def test_a_healthy_node(bundle: Bundle, dcgm: Callable[..., str], ports: Callable[..., str]) -> None:
    bundle.scrapes(dcgm, SCRAPES).scrapes(lambda t: ports(t, lambda t: 4, lambda t: 2), SCRAPES, "node_exporter")
    found = diagnose([bundle.path])
    assert found.incidents == []
    assert patterns(found) == []
    assert len(of(found, ThrottleSample)) == len(of(found, FramebufferSample)) == 8 * len(SCRAPES)
    assert {fact.reason for fact in of(found, ThrottleSample)} == {"power"}
    assert not of(found, EccDelta) + of(found, NvlinkRate) + of(found, PcieRateCollapse)


def test_a_gauge_that_shows_the_kernels_xid_is_evidence(bundle: Bundle, dcgm: Callable[..., str]) -> None:
    """Of the same GPU; the gauge of another one, which has been there for weeks, is not."""
    shown = {"DCGM_FI_DEV_XID_ERRORS": lambda t, gpu, usual: (48 if t >= 305 else 0) if gpu == 2 else 119}
    bundle.scrapes(lambda t: dcgm(t, shown), SCRAPES).kernel((303.2, XID_48))
    found = diagnose([bundle.path])
    (verdict,) = (one for one in found.document()["verdicts"] if one["pattern.name"] == "gpu_fault")
    assert [entry["kind"] for entry in verdict["evidence_trail"]] == ["kernel_event", "xid_gauge"]
    assert verdict["reports"] == 1
    assert verdict["gpu.id"] == "0000:3a:00.0"


def test_old_errors_and_a_sticky_xid(bundle: Bundle, dcgm: Callable[..., str]) -> None:
    """Errors of last week, and the last Xid ever seen, beside an Xid line of today."""
    old = {
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": lambda t, gpu, usual: 4,
        "DCGM_FI_DEV_XID_ERRORS": lambda t, gpu, usual: 79,
    }
    bundle.scrapes(lambda t: dcgm(t, old), SCRAPES).kernel((303.2, XID_48))
    found = diagnose([bundle.path])
    assert not of(found, EccDelta)
    assert "hbm_ecc" not in patterns(found)


def test_blanks(bundle: Bundle, dcgm: Callable[..., str]) -> None:
    blanks = (2147483632, 9223372036854775794, 140737488355330)
    changes = {
        name: lambda t, gpu, usual: blanks[int(t) // 15 % 3] if gpu == 2 and t >= 300 else usual
        for name in (
            "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
            "DCGM_FI_DEV_SM_CLOCK",
            "DCGM_FI_DEV_FB_FREE",
            "DCGM_FI_DEV_GPU_TEMP",
        )
    }
    bundle.scrapes(lambda t: dcgm(t, changes), SCRAPES).kernel((303.2, XID_48))
    found = diagnose([bundle.path])
    assert not of(found, EccDelta)
    assert all((fact.sm_clock_mhz or 0) < 3000 for fact in of(found, ThrottleSample))


def test_a_power_cap(bundle: Bundle) -> None:
    """Recorded: a GPU slowed down by its power limit."""
    shutil.copy(ROOT / "examples" / "telemetry" / "power_cap_not_thermal.csv", bundle.path)
    shutil.copy(ROOT / "examples" / "telemetry" / "nvidia-smi-q.txt", bundle.path)
    found = diagnose([bundle.path])
    assert patterns(found) == []
    samples = of(found, ThrottleSample)
    assert {"power", "none"} >= {fact.reason for fact in samples}
    assert any(fact.reason == "power" and (fact.sm_clock_mhz or 0) < 1900 for fact in samples)


def test_a_driver_that_is_loaded_anew(bundle: Bundle, dcgm: Callable[..., str]) -> None:
    """All counters begin again and three scrapes are missing."""
    begun = {
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": lambda t, gpu, usual: 3 if t < 300 else 0,
        **{
            f"DCGM_FI_DEV_NVLINK_BANDWIDTH_L{link}": lambda t, gpu, usual: usual if t < 300 else 21e9 * (t - 295)
            for link in range(4)
        },
    }
    bundle.scrapes(lambda t: dcgm(t, begun), [t for t in SCRAPES if not 270 <= t < 315])
    found = diagnose([bundle.path])
    assert patterns(found) == []
    assert not of(found, EccDelta) + of(found, NvlinkRate) + of(found, PcieRateCollapse)


def test_a_job_that_ends(bundle: Bundle, dcgm: Callable[..., str]) -> None:
    """Nothing flows any more, clocks fall, memory is free: on all GPUs, and they are idle."""
    ended: dict[str, Change] = {
        "DCGM_FI_DEV_GPU_UTIL": lambda t, gpu, usual: usual if t < 400 else 0,
        "DCGM_FI_DEV_SM_CLOCK": lambda t, gpu, usual: usual if t < 400 else 345,
        "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": lambda t, gpu, usual: usual if t < 400 else 1,
        "DCGM_FI_PROF_PCIE_TX_BYTES": lambda t, gpu, usual: usual if t < 400 else 0,
        **{
            f"DCGM_FI_DEV_NVLINK_BANDWIDTH_L{link}": lambda t, gpu, usual: 8e12 + 21e9 * min(t, 400)
            for link in range(4)
        },
    }
    bundle.scrapes(lambda t: dcgm(t, ended), SCRAPES).kernel((395, AER))
    assert patterns(diagnose([bundle.path])) == []


# -- names and times ---------------------------------------------------------------------------------------------------


def test_a_bus_id_from_the_kernels_log(bundle: Bundle, dcgm: Callable[..., str]) -> None:
    """An older exporter has no bus id in its labels; the driver prints UUID and bus id side by side."""
    bundle.scrapes(lambda t: dcgm(t, ECC, bus=False), SCRAPES)
    named = (303.1, "NVRM: GPU at PCI:0000:3a:00: GPU-1f027ee8-6e1e-2b8c-0108-3d370e5f0412")
    bundle.kernel(named, (303.2, XID_48))
    found = diagnose([bundle.path])
    assert "hbm_ecc" in patterns(found)
    samples = of(found, ThrottleSample)
    assert {fact.gpu for fact in samples if fact.index is None} == {"0000:3a:00.0"}
    assert len({fact.index for fact in samples if fact.gpu is None}) == 7


def test_gpus_that_nobody_names_are_said_to_be_so(bundle: Bundle, dcgm: Callable[..., str]) -> None:
    bundle.scrapes(lambda t: dcgm(t, ECC, bus=False), range(300, 330, 15)).kernel((303.2, XID_48))
    found = diagnose([bundle.path])
    assert not of(found, EccDelta)
    skipped = json.dumps(found.coverage, default=str) if isinstance(found.coverage, dict) else str(found.coverage)
    assert "8 GPUs are known by index or UUID only" in skipped


def test_scrapes_without_any_time(bundle: Bundle, dcgm: Callable[..., str]) -> None:
    """Numbered files: an interval apart, the last at the end of the bundle, which the kernel's log gives."""
    folder = bundle.path / "metrics"
    folder.mkdir()
    for number, t in enumerate(SCRAPES):
        (folder / f"scrape-{number}.prom").write_text(dcgm(t, HOT))
    bundle.kernel((585, "eth0: link is up"))
    found = diagnose([bundle.path])
    assert patterns(found) == ["thermal_throttle"]
    assert all(fact.approximate for fact in of(found, ThrottleSample))


def test_many_scrapes_in_one_file(bundle: Bundle, dcgm: Callable[..., str]) -> None:
    stamped = "".join(f"# scraped at {1_794_700_800 + t}\n{dcgm(t, ECC)}" for t in SCRAPES)
    bundle.file("dcgm.prom", stamped).kernel((303.2, XID_48))
    assert "hbm_ecc" in patterns(diagnose([bundle.path]))


def test_boot_relative_kernel_times_follow_the_scrapes(bundle: Bundle, dcgm: Callable[..., str]) -> None:
    """Nothing but the scrapes has a date: the kernel's log ends where they end."""
    bundle.scrapes(lambda t: dcgm(t, ECC), range(0, 330, 15))
    bundle.file("dmesg.txt", f"[ 1000.000000] Linux\n[ 8303.200000] {XID_48}\n[ 8315.000000] audit: ok\n")
    assert "hbm_ecc" in patterns(diagnose([bundle.path]))


def test_the_order_of_files_does_not_matter(bundle: Bundle, dcgm: Callable[..., str], tmp_path: Path) -> None:
    """The same files in an archive in any order, and under names that sort the other way, are the same facts."""
    bundle.scrapes(lambda t: dcgm(t, HOT), range(240, 420, 15))
    files = sorted((bundle.path / "metrics").iterdir())
    seen = []
    for seed in range(2):
        random.Random(seed).shuffle(files)
        archive = tmp_path / str(seed) / "bundle.tar"
        archive.parent.mkdir()
        with tarfile.open(archive, "w") as tar:
            for file in files:
                tar.add(file, file.name)
        found = diagnose([archive])
        seen.append(
            [
                (fact.time, fact.gpu, fact.reason, fact.sm_clock_mhz, fact.source.path.rsplit("/")[-1])
                for fact in of(found, ThrottleSample)
            ]
        )
        assert patterns(found) == ["thermal_throttle"]
    assert seen[0] == seen[1]


def test_a_damaged_scrape_is_listed_and_the_rest_is_used(bundle: Bundle, dcgm: Callable[..., str]) -> None:
    bundle.scrapes(lambda t: dcgm(t, HOT), SCRAPES)
    victim = sorted((bundle.path / "metrics").iterdir())[30]
    victim.write_bytes(victim.read_bytes()[:20000] + b'\xff\xfe{{{"' * 50)
    assert patterns(diagnose([bundle.path])) == ["thermal_throttle"]


# -- other exporters ---------------------------------------------------------------------------------------------------

CSV = (
    "timestamp, index, pci.bus_id, temperature.gpu, clocks.current.sm [MHz], memory.total [MiB], memory.free [MiB], "
    "clocks_event_reasons.active, ecc.errors.uncorrected.volatile.total\n"
)


def smi(hot: int, errors: int = -1) -> str:
    """`nvidia-smi --query-gpu=… --format=csv -l 10`; rows of one moment are some milliseconds apart."""
    rows = [CSV]
    for second in range(0, 600, 10):
        for gpu in range(4):
            slow, broken = gpu == hot and second >= 300, gpu == errors and second >= 300
            rows.append(
                f"2026/11/15 {second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}.{100 + 7 * gpu}, {gpu}, "
                f"00000000:{0x18 + gpu:02X}:00.0, {92 if slow else 60}, {1200 if slow else 1980} MHz, "
                f"81559 MiB, 9000 MiB, 0x00000000000000{'68' if slow else '04'}, {int(broken)}\n"
            )
    return "".join(rows)


def test_heat_in_a_table_of_nvidia_smi(bundle: Bundle) -> None:
    found = diagnose([bundle.file("gpus.csv", smi(hot=3)).path])
    assert patterns(found) == ["thermal_throttle"]
    assert found.incidents[0].suspects.gpus == ("0000:1b:00.0",)


def test_memory_errors_in_a_table_of_nvidia_smi(bundle: Bundle) -> None:
    bundle.file("gpus-node-7.csv", smi(hot=-1, errors=2)).kernel((297, XID_48.replace("3a:00", "1a:00")))
    assert "hbm_ecc" in patterns(diagnose([bundle.path]))


def test_a_table_gives_names_to_an_exporter_without_them(bundle: Bundle, dcgm: Callable[..., str]) -> None:
    """dcgm-exporter knows the index alone; nvidia-smi of the same machine has index and bus id."""
    bundle.scrapes(lambda t: dcgm(t, ECC, bus=False), SCRAPES)
    folder = bundle.path / "node-7"
    folder.mkdir()
    (folder / "nvidia-smi.csv").write_text(
        "timestamp, index, pci.bus_id, temperature.gpu\n"
        + "".join(f"2026/11/15 00:09:00.000, {gpu}, 00000000:{0x38 + gpu:02X}:00.0, 60\n" for gpu in range(8))
    )
    bundle.kernel((303.2, XID_48))
    assert "hbm_ecc" in patterns(diagnose([bundle.path]))


def amd(t: float) -> str:
    """AMD's device metrics exporter, one GPU of which slows itself for heat."""
    lines = []
    for gpu in range(4):
        hot = gpu == 1 and t >= 300
        labels = f'gpu_id="{gpu}",gpu_uuid="72ff740f-0000-1000-804c-3b58bf67050{gpu}",hostname="node-9",'
        heat = max(0, t - 300) if gpu == 1 else 0
        labels += f'pcie_bus_id="0000:C{gpu}:00.0",serial_number="69{gpu}"'
        lines += [
            f"gpu_junction_temperature{{{labels}}} {105 if hot else 70}",
            f'gpu_clock{{clock_type="GPU_CLOCK_TYPE_SYSTEM",{labels}}} {900 if hot else 2100}',
            f"gpu_violation_socket_thermal_tracking_residency_accumulated{{{labels}}} {heat}",
            f"gpu_ecc_uncorrect_total{{{labels}}} 0",
        ]
    return "\n".join(lines) + "\n"


def test_heat_of_an_amd_gpu(bundle: Bundle) -> None:
    found = diagnose([bundle.scrapes(amd, SCRAPES, "amd").path])
    assert patterns(found) == ["thermal_throttle"]
    assert found.incidents[0].suspects.gpus == ("0000:c1:00.0",)


def test_what_a_cluster_federates(bundle: Bundle, dcgm: Callable[..., str]) -> None:
    """Two nodes in one scrape have GPUs with the same bus ids; the kernel's line is of one of them."""

    def text(t: float) -> str:
        return dcgm(t, ECC, host="node-7") + dcgm(t, host="node-8")

    bundle.scrapes(text, SCRAPES).kernel((303.2, XID_48), host="node-8")
    found = diagnose([bundle.path])
    assert {fact.node for fact in of(found, EccDelta)} == {"node-7"}
    assert not any(fact.approximate for fact in of(found, ThrottleSample))
    assert "hbm_ecc" not in patterns(found)


def test_scrapes_of_other_projects(bundle: Bundle, shared_data: Path) -> None:
    """Excerpts of real scrapes, put together: blanks, instances, a sticky Xid; nothing is wrong in them."""
    sample = (shared_data / "peers" / "dcgm" / "samples.prom").read_text()
    found = diagnose([bundle.scrapes(lambda t: sample, SCRAPES).path])
    assert patterns(found) == []
    assert found.incidents == []


# -- live --------------------------------------------------------------------------------------------------------------


def test_points_as_they_come_give_the_same_facts(bundle: Bundle, dcgm: Callable[..., str]) -> None:
    """The agent scrapes and looks every 15 s; a bundle of the same scrapes is read afterwards."""
    bundle.scrapes(lambda t: dcgm(t, {**HOT, **ECC, **COLLAPSE, **SLOW_LINK}), SCRAPES)
    found = discover([bundle.path])
    live, facts = MetricFacts(), []
    for _, points in reading.points(found, Counters()):
        for point in points:
            live.observe(point)
        facts += live.advance(point.time)
    facts += live.advance(point.time + 3600 * 10**9)
    assert live.dropped == {}
    assert facts == metrics.facts(metrics.gather(found), found)
    assert {type(fact) for fact in facts} == {
        EccDelta,
        FramebufferSample,
        NvlinkRate,
        PcieRateCollapse,
        ThrottleSample,
        XidGauge,
    }

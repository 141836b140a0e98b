"""The engine with every pattern on: facts for each second of one core, whether that stays so, and memory.

Facts are mixed over 1,000 nodes with eight GPUs each, as a large cluster on a bad day has them: samples and progress
for the most part, Xids, ECC rises, evictions and pressures among them.
"""

from __future__ import annotations

import gc
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench import Measurement
from tracecore.engine.engine import Engine
from tracecore.facts.fact import Fact
from tracecore.facts.gpu import EccDelta, FramebufferSample, ThrottleSample, Xid
from tracecore.facts.kubernetes import NodePressure, PodEvicted
from tracecore.facts.training import Progress
from tracecore.patterns import catalogue
from tracecore.signals.record import Source

SECOND = 1_000_000_000
START = 1_767_225_600 * SECOND
NODES = 1000
BUSES = [f"0000:{bus:02x}:00.0" for bus in (0x18, 0x2A, 0x3B, 0x5E, 0x86, 0x9A, 0xAF, 0xDB)]
BASE = 50_000


def mixed(number: int, spread: int) -> Iterator[Fact]:
    """So many facts over so much time, in order of time; the same every time."""
    nodes = [f"node-{index:04d}" for index in range(NODES)]
    paths = [f"/var/log/{node}.log" for node in nodes]
    for index in range(number):
        time_ = START + index * spread // number
        place = (index * 7919 + index // 10) % NODES
        node, gpu = nodes[place], BUSES[index * 31 % 8]
        source = Source(path=paths[place], offset=index * 120, line=index)
        match index % 10:
            case 0 | 1 | 2:
                yield Progress(time=time_, source=source, node=node, job=f"job-{place // 64}", rank=place, step=index)
            case 3 | 4:
                yield ThrottleSample(time=time_, source=source, node=node, gpu=gpu, reason="none", sm_clock_mhz=1980.0)
            case 5 | 6:
                yield FramebufferSample(time=time_, source=source, node=node, gpu=gpu, free_bytes=10**10)
            case 7:
                yield Xid(time=time_, source=source, node=node, gpu=gpu, code=(13, 31, 48, 79)[index // 10 % 4])
            case 8:
                yield EccDelta(
                    time=time_,
                    source=source,
                    node=node,
                    gpu=gpu,
                    delta=1,
                    error_type="corrected" if index % 100 > 20 else "uncorrected",
                    subtype="double_bit",
                    persistence="volatile",
                )
            case _ if index % 100 == 9:
                yield PodEvicted(time=time_, source=source, node=node, pod=f"train/p-{index}", reason="Evicted")
            case _ if index % 200 == 19:
                yield NodePressure(time=time_, source=source, node=node, condition="MemoryPressure")
            case _:
                yield Progress(time=time_, source=source, node=node, job=f"job-{place // 64}", rank=place, step=index)


def live(number: int) -> float:
    """Facts for each second of CPU, all patterns on, a look every second; more facts take more time to happen."""
    facts = list(mixed(number, number * 600 * SECOND // BASE))
    engine = Engine(catalogue())
    gc.collect()
    begin = time.process_time()
    place = 0
    while place < number:
        now = facts[place].time + SECOND
        batch = []
        while place < number and facts[place].time <= now:
            batch.append(facts[place])
            place += 1
        engine.add(batch)
        engine.advance(now)
    return number / (time.process_time() - begin)


def offline(number: int) -> float:
    """The same for facts of ten minutes at once, however many: windows grow with them."""
    facts = list(mixed(number, 600 * SECOND))
    gc.collect()
    begin = time.process_time()
    Engine(catalogue()).replay(facts)
    return number / (time.process_time() - begin)


def memory(number: int = 1_000_000) -> float:
    """MiB that a process grows by when so many different facts are held in windows, the facts themselves included."""
    code = f"from bench.engine import hold; hold({number})"
    folder = Path(__file__).resolve().parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    return float(done.stdout)


def hold(number: int) -> None:
    """Fill windows with facts that patterns need, all within a minute, and print the growth in MiB."""
    engine = Engine(catalogue())
    needed = (Xid, EccDelta, NodePressure, PodEvicted)
    before = _resident()
    batch: list[Fact] = []
    held = 0
    for fact in mixed(9 * number, 60 * SECOND):
        if not isinstance(fact, needed) or (isinstance(fact, EccDelta) and fact.error_type == "corrected"):
            continue
        batch.append(fact)
        held += 1
        if len(batch) == 10_000 or held == number:
            engine.add(batch)
            engine.advance(batch[-1].time)
            batch = []
        if held == number:
            break
    if held < number or engine.stats.evicted_total or engine.stats.held < number:
        raise RuntimeError(f"{held} facts, {engine.stats}")
    print((_resident() - before) / 2**20)


def _resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def measure() -> list[Measurement]:
    """Throughput at 1×, 4× and 16×, how it scales, and memory."""
    rows = []
    about = f"{len(catalogue())} patterns, {NODES:,} nodes"
    for name, rate in (("live", live), ("offline", offline)):
        rates = {factor: rate(BASE * factor) for factor in (1, 4, 16)}
        rows += [
            Measurement(f"engine.{name}.{factor}x", round(value), "facts/s", "≥ 100,000", f"{BASE * factor:,}, {about}")
            for factor, value in rates.items()
        ]
        slower = round(rates[1] / rates[16], 3)
        rows.append(Measurement(f"engine.{name}.scaling", slower, "x", "≤ 1.5", "time for a fact at 16× over 1×"))
    rows.append(Measurement("engine.memory", round(memory(), 1), "MiB", "≤ 500", "1,000,000 facts in windows"))
    return rows

"""The `gpu` receiver: asks the driver and the kernel at an interval."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import Final, Literal

import msgspec

from tracecore.agent.batch import Batch, Refused
from tracecore.agent.component import Consumer, Setting
from tracecore.agent.options import SECOND, Duration, Interval
from tracecore.agent.receivers.gpu import infiniband
from tracecore.agent.receivers.gpu.measurement import Value, payload
from tracecore.agent.receivers.gpu.nvml import Nvml, NvmlError

Use = Literal["auto", "required", "none"]
#: Seconds before a driver that is not there is looked for again.
AGAIN: Final = 30.0
#: Seconds between two attempts to hand values on.
PAUSE: Final = 0.1


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        collection_interval: how often.
        initial_delay: before the first time.
        nvml: NVIDIA's GPUs; `auto` asks where there is a driver, `required` is degraded without one.
        infiniband: InfiniBand and RoCE ports, alike.
        sysfs_path: where sysfs is mounted; in a container `/host/sys`, perhaps.
        host_name: of this machine; what the system says when not given.
    """

    collection_interval: Interval = 10 * SECOND
    initial_delay: Duration = 0
    nvml: Use = "auto"
    infiniband: Use = "auto"
    sysfs_path: str = "/sys"
    host_name: str | None = None


class GpuReceiver:
    """Collects until it is told to stop."""

    def __init__(self, options: Options, setting: Setting) -> None:
        self._options = options
        self._setting = setting
        self._path = Path(options.sysfs_path) / "class" / "infiniband"
        self._resource = {"host.name": options.host_name or socket.gethostname(), "tracecore.layer": "metrics"}
        self._nvml: Nvml | None = None
        self._look = 0.0
        self._missing = ""
        self._before: dict[tuple[object, ...], Value] = {}

    def run(self, consume: Consumer, stop: threading.Event) -> None:
        interval = self._options.collection_interval / SECOND
        due = time.monotonic() + self._options.initial_delay / SECOND
        try:
            while not stop.wait(max(due - time.monotonic(), 0.0)):
                self.collect(consume, stop, due + interval)
                due = max(due + interval, time.monotonic())
        finally:
            if self._nvml is not None:
                self._nvml.close()
                self._nvml = None

    def collect(self, consume: Consumer, stop: threading.Event, until: float) -> None:
        """Ask once, and hand on what was said."""
        now = self._setting.clock()
        values = self._gpus() if self._options.nvml != "none" else []
        gpus = bool(values)
        if self._options.infiniband != "none":
            values += infiniband.collect(self._path)
        self._state(gpus, len(values) > 0)
        known = {value.key: value for value in values}
        ended = [value for key, value in self._before.items() if key not in known]
        self._before = known
        made, count = payload(values, ended, self._resource, now)
        while count:
            try:
                consume(Batch("metrics", made, count=count))
                return
            except Refused:
                if time.monotonic() > until or stop.wait(PAUSE):
                    self._setting.meter.drop("refused_collection", count)
                    return

    def _gpus(self) -> list[Value]:
        if self._nvml is None:
            if time.monotonic() < self._look:
                return []
            try:
                self._nvml = Nvml()
                self._missing = ""
            except NvmlError as error:
                self._look = time.monotonic() + AGAIN
                self._missing = str(error)
                return []
        try:
            return self._nvml.collect()
        except NvmlError as error:
            # The driver was unloaded or updated: it is opened anew next time.
            self._nvml.close()
            self._nvml, self._missing = None, str(error)
            return []

    def _state(self, gpus: bool, anything: bool) -> None:
        wrong = ""
        if self._nvml is not None and self._nvml.lost:
            wrong = "; ".join(f"{gpu} does not answer: {why}" for gpu, why in sorted(self._nvml.lost.items()))
        elif self._options.nvml == "required" and not gpus:
            wrong = self._missing or "there is no GPU"
        elif self._options.infiniband == "required" and not any(infiniband.ports(self._path)):
            wrong = f"there is no InfiniBand port in {self._path}"
        elif not anything:
            wrong = f"there is neither a GPU nor an InfiniBand port to ask: {self._missing or 'no GPU'}"
        self._setting.report(wrong)

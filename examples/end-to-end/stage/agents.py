"""The agents, as processes of this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
DEPLOYED = HERE.parents[1] / "deploy" / "kustomize" / "base" / "config"
#: Seconds an agent may take to be ready: on a busy machine the import alone takes some.
PATIENCE = 180.0
RUN = "from tracecore.cli.main import main; import sys; sys.exit(main())"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Agent:
    """One agent.

    Args:
        name: of its log.
        configs: files, a later one over an earlier one.
        environment: beside that of this process.
        log: where it writes.
        health: port of its `health_check`.
        metrics: port of its own numbers.
        before: a command that runs it, with the rest as arguments.
        code: what the interpreter runs.
    """

    def __init__(
        self,
        configs: Sequence[Path],
        environment: Mapping[str, str],
        log: Path,
        health: int,
        metrics: int,
        before: Sequence[str] = (),
        code: str = RUN,
    ) -> None:
        self._log = log
        self._health = health
        self._metrics = metrics
        command = [*before, sys.executable, "-c", code, "run"]
        for path in configs:
            command += ["--config", str(path)]
        with log.open("wb") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **environment})

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def ready(self, seconds: float = PATIENCE) -> None:
        """Wait until everything it has is well.

        Raises:
            RuntimeError: it ended, or is not ready in time; with its log.
        """
        deadline = time.monotonic() + seconds
        while not self.well():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the agent is not ready:\n{self.log}")
            time.sleep(0.2)

    def well(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._health}/readyz", timeout=30) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def number(self, beginning: str, part: str = "") -> float:
        """The sum of the agent's own numbers whose lines begin so and have that in them."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._metrics}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(beginning) and part in line)

    def emitted(self, receiver: str) -> float:
        """Records that a receiver has read."""
        return self.number(f'tracecore_component_emitted_total{{kind="receiver",component="{receiver}"')

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

"""numpy starts no threads, and programs started from here do not learn of it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_SAYS = """
import os
from tracecore.signals.arrays import np
print(np.arange(4).sum(), len(os.listdir("/proc/self/task")), os.environ.get("OPENBLAS_NUM_THREADS"))
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are counted in /proc")
@pytest.mark.parametrize("wanted", [None, "1"])
def test_no_thread_is_started_and_no_setting_is_left(wanted: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    if wanted is not None:
        environment["OPENBLAS_NUM_THREADS"] = wanted
    said = subprocess.run([sys.executable, "-c", _SAYS], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["6", "1", str(wanted)]

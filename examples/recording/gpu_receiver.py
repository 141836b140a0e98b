"""Ask the GPUs of this machine as the `gpu` receiver does, and write down every answer of the driver.

    pip install '.[gpu]'
    python examples/recording/gpu_receiver.py > recorded.json

The file has the calls into NVIDIA's library with what it gave back, byte by byte (`tests/data/nvml` has such files, and
tests play them back), and the values that came of them. To see them as the agent exports them:

    tracecore run --config examples/recording/gpu_receiver.yaml
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

import pynvml

from tracecore.agent.receivers.gpu.nvml import Nvml, NvmlError


class Recorder:
    """Stands between the program and the library."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self._through = pynvml._nvmlGetFunctionPointer
        pynvml._nvmlGetFunctionPointer = self.pointer

    def pointer(self, name: str) -> Any:
        function = self._through(name)

        def call(*arguments: Any) -> int:
            result = int(function(*arguments))
            given: list[int | None] = []
            out: list[str] = []
            for argument in arguments:
                held = getattr(argument, "_obj", argument)
                if held is argument and not isinstance(held, ctypes.Array):
                    value = getattr(held, "value", held)
                    given.append(value if isinstance(value, int) else None)  # a handle is the library's own business
                else:
                    given.append(None)
                    out.append(bytes(held).hex())
            self.calls.append({"function": name, "given": given, "result": result, "out": out})
            return result

        return call


def main() -> int:
    recorder = Recorder()
    try:
        driver = Nvml()
        values = driver.collect()
        driver.close()
    except NvmlError as error:
        print(error, file=sys.stderr)
        return 1
    found = [[value.name, value.value, value.unit, value.counts, dict(value.attributes)] for value in values]
    json.dump({"calls": recorder.calls, "values": found}, sys.stdout, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())

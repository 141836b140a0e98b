"""Record what a trainer says whose loader worker is killed: `python record_loader.py FOLDER`, with torch installed.

The worker dies of a SIGKILL, as the kernel's out-of-memory killer sends it. The trainer is still there when the
recording ends, which its exit status says.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

LASTS = 240


def main() -> None:
    place = Path(sys.argv[1])
    place.mkdir(parents=True)
    log = place / "rank0.log"
    script = Path(__file__).with_name("train_loader.py")
    with log.open("wb") as out:
        trainer = subprocess.Popen([sys.executable, "-u", script], stdout=out, stderr=subprocess.STDOUT)
    while "step 30 " not in log.read_text():
        time.sleep(0.2)
    workers = re.search(r"loader workers: (\d+) (\d+)", log.read_text())
    assert workers is not None
    os.kill(int(workers[2]), signal.SIGKILL)
    time.sleep(LASTS)
    (place / "exit_codes.json").write_text(json.dumps({"0": trainer.poll()}) + "\n")
    for pid in (trainer.pid, int(workers[1])):
        os.kill(pid, signal.SIGKILL)
    trainer.wait()


if __name__ == "__main__":
    main()

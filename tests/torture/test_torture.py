"""The short form of `make soak`: a real agent, a real writer, real servers, for a few seconds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).with_name("soak.py")


@pytest.mark.integration
def test_nothing_is_lost_and_little_is_doubled() -> None:
    environment = {**os.environ, "SOAK_SECONDS": "4", "SOAK_SEED": "3", "SOAK_RATE": "8000"}
    with subprocess.Popen(
        [sys.executable, str(SOAK)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as soak:
        try:
            out, said = soak.communicate(timeout=540)
        except subprocess.TimeoutExpired:
            # With all that it has started.
            os.killpg(soak.pid, signal.SIGKILL)
            raise
    # What a full disk was, and the seed: where it fails, they are wanted.
    print(said)
    assert soak.returncode == 0, said
    stopped, killed = map(json.loads, out.splitlines()[:2])
    print(f"{killed['doubled']} of {killed['lines']} lines doubled by {killed['kills']} kills")
    assert stopped["era"] == "stopped"
    assert stopped["stops"] >= 1
    assert stopped["doubled"] <= stopped["bound"]
    assert stopped["left unsent"] or stopped["doubled"] == 0
    assert killed["kills"] >= 1
    assert killed["doubled"] <= killed["bound"]
    for era in (stopped, killed):
        assert era["missing"] == 0
        assert era["lines"] > 1000
        assert era["excused"] < era["lines"] / 2

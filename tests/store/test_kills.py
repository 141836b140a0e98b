"""Kill -9 at any instant: nothing acknowledged is lost, nothing is announced twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sqlalchemy import func, select

from tracecore.store.store import Store
from tracecore.store.tables import changes, incidents, revisions

SEED = int(os.environ.get("KILL_SEED", "3"))
KILLS = int(os.environ.get("KILLS", "4"))

#: Stores revisions of a few incidents as fast as it can, and prints each that was acknowledged.
WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from made import T0, incident
from tracecore.store.store import Store
from tracecore.store.update import read_update

store = Store.open(sys.argv[2])
first, last = int(sys.argv[3]), int(sys.argv[4])
for number in range(first, last):
    # Each is sent twice, as by a sender that did not hear the answer.
    for _ in range(2):
        some = [read_update(incident(n, revision=number // 8 + 1), now=T0) for n in range(number % 8, 8)]
        store.put(some, T0 + number)
    print(number, flush=True)
"""


@pytest.mark.heavy
@pytest.mark.parametrize("writers", [1, 2])
def test_killed_writers_lose_and_repeat_nothing(place: str, tmp_path: Path, writers: int) -> None:
    chance = random.Random(SEED)
    Store.open(place).close()
    acknowledged = -1
    for _ in range(KILLS):
        begin = max(acknowledged + 1, 0)
        command = [sys.executable, "-c", WRITER, str(Path(__file__).parent), place, str(begin), str(begin + 10_000)]
        # The second writer sends the same: two servers that got the same events.
        running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(writers)]
        assert running[0].stdout is not None
        running[0].stdout.readline()
        acknowledged = max(acknowledged, begin)
        time.sleep(chance.uniform(0.0, 0.4))
        for process in running:
            process.send_signal(signal.SIGKILL)
        for process in running:
            said = process.communicate()[0].split()
            acknowledged = max([acknowledged, *map(int, said)])
    store = Store.open(place)
    with store.database.read() as connection:
        held = {row.id: row.revision for row in connection.execute(select(incidents.c.id, incidents.c.revision))}
        rows = connection.execute(
            select(incidents.c.id, revisions.c.revision).join(incidents, incidents.c.number == revisions.c.incident)
        ).all()
        announced = connection.execute(select(func.count()).select_from(changes)).scalar_one()
    store.close()
    assert acknowledged > KILLS
    # Every revision that was acknowledged is there.
    for number in range(acknowledged + 1):
        for n in range(number % 8, 8):
            assert held[f"incident-{n:012x}"] >= number // 8 + 1
    # Each revision was announced once, however often it was sent: notifications follow what is announced.
    assert announced == len(rows)

"""Plays failures on a machine that does not exist, for the agents that the chart deploys, and prints their incidents.

python examples/end-to-end/play.py memory-error
python examples/end-to-end/play.py --list
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from stage.incidents import INCIDENTS, Incident
from stage.play import Local
from stage.webhook import until

#: Seconds more than the bound of an incident that a busy machine is given.
SLACK = 60.0


def show(document: dict[str, Any], seconds: float) -> None:
    """An incident as it came, for people."""
    incident = document["incident"]
    again = f", revision {document['revision']}" if document["revision"] > 1 else ""
    what = document["pattern"] or "cause not known"
    print(f"\n  {document['id']} ({what}, {document['status']}{again}) after {seconds:.1f} s")
    print(textwrap.fill(document["headline"], 110, initial_indent="  ", subsequent_indent="  "))
    print(textwrap.fill("→ " + document["remediation"], 110, initial_indent="  ", subsequent_indent="    "))
    others = ", ".join(document["patterns"][1:])
    print(f"    class {incident['failure']['class']}" + (f"; explains {others}" if others else ""))


def play(incident: Incident, place: Path, *, fast: bool) -> bool:
    """Play one; whether its incident came."""
    print(f"{incident.name}: {incident.story}")
    print("  starting the agents, then a healthy job …", flush=True)
    with Local(place, fast=fast, second="node-8") as stage:
        began = incident.play(stage)
        bound = incident.within if fast else incident.unscaled
        came = until(lambda: bool(stage.webhook.of(incident.pattern)), bound + SLACK)
        time.sleep(2)  # for what more becomes known of it
        for delivery in list(stage.webhook.deliveries):
            show(delivery.document, delivery.time - began)
        number = len({delivery.document["id"] for delivery in stage.webhook.deliveries})
    print("" if came else f"\n  no incident of {incident.pattern}: see the logs in {place}")
    if number > 1:
        print(f"  {number} incidents for one failure: see the logs in {place}")
    return came and number == 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("incident", nargs="?", default="memory-error", choices=["all", *(i.name for i in INCIDENTS)])
    parser.add_argument("--list", action="store_true", help="what can be played")
    parser.add_argument("--defaults", action="store_true", help="with the thresholds of production: some take minutes")
    parser.add_argument("--keep", type=Path, help="a directory for the files and the agents' logs")
    arguments = parser.parse_args()
    if arguments.list:
        for incident in INCIDENTS:
            print(f"{incident.name:<14} {incident.pattern:<20} {incident.story}")
        return 0
    came = True
    for incident in INCIDENTS:
        if arguments.incident in ("all", incident.name):
            with tempfile.TemporaryDirectory(prefix="tracecore-") as made:
                place = Path(made) if arguments.keep is None else arguments.keep / incident.name
                place.mkdir(parents=True, exist_ok=True)
                if any(place.iterdir()):
                    parser.error(f"{place} is not empty")
                came &= play(incident, place, fast=not arguments.defaults)
    return 0 if came else 1


if __name__ == "__main__":
    sys.exit(main())

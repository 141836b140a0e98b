"""When a group is told what: Alertmanager's timers, and updates in place as soon as there is something better to say.

Pure: the same group, incidents and time give the same plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from tracecore.notify.message import Reason
from tracecore.notify.routes import SECOND, Route

#: How an incident stands for a group; a suppressed one is silenced, inhibited or muted.
Standing: TypeAlias = Literal["firing", "resolved", "suppressed"]
#: Updates in place are not sent more often than this.
SETTLE: Final = 2 * SECOND
#: How often a group is looked at while something suppresses its incidents.
RECHECK: Final = 30 * SECOND


class GroupedIncident(msgspec.Struct, kw_only=True, frozen=True):
    """One incident of a group.

    Args:
        joined: when it came to the group.
        digest: names what a reader would see.
        acknowledged: somebody looks after it, so nobody is reminded.
        told: how it was told last; empty where it never was.
        told_digest: what was told.
    """

    id: str
    joined: int
    standing: Standing
    digest: str
    acknowledged: bool = False
    told: Literal["", "firing", "resolved"] = ""
    told_digest: str = ""


class GroupPlan(msgspec.Struct, kw_only=True, frozen=True):
    """The next step for a group.

    Args:
        reason: why to send; None to send nothing.
        new: the incidents that are the reason.
        next: when to look again; None where only a change of an incident can matter.
    """

    reason: Reason | None
    new: list[str] = []
    next: int | None = None


def plan(
    members: Sequence[GroupedIncident],
    route: Route,
    now: int,
    *,
    sent: int | None,
    noticed: int | None,
    edits: bool,
    send_resolved: bool = True,
    refresh: int = 0,
) -> GroupPlan:
    """Decide what to send about a group.

    Args:
        sent: when the last message left; None where none did.
        noticed: when the last message left that people were meant to notice.
        edits: messages can be changed in place.
        refresh: the receiver forgets after this long.
    """
    firing = [member for member in members if member.standing == "firing"]
    fresh = [member for member in firing if member.told != "firing"]
    over = [member for member in members if member.standing == "resolved" and member.told == "firing"]
    lasting = [member for member in members if member.told == "firing" and member.standing != "resolved"]
    better = [member for member in firing if member.told == "firing" and member.told_digest != member.digest]
    dues: list[tuple[int, Reason, list[GroupedIncident]]] = []
    if fresh:
        # A group without a firing incident starts again, as in Alertmanager.
        begins = min(member.joined for member in fresh) + route.group_wait
        goes_on = (noticed or 0) + route.group_interval
        first: Reason = "opened" if sent is None else "joined"
        dues.append((max(begins, goes_on) if lasting and noticed is not None else begins, first, fresh))
    if over and send_resolved and sent is not None:
        # A receiver that cannot edit its messages gets one, when the group's interval is over.
        dues.append((sent + (SETTLE if edits else route.group_interval), "resolved", over))
    if better and edits and sent is not None:
        dues.append((sent + SETTLE, "updated", better))
    if lasting and firing and not fresh and noticed is not None and not all(member.acknowledged for member in firing):
        # What is new is told as new, and reminds of the others: nobody looks for it in a reminder.
        dues.append((noticed + route.repeat_interval, "repeated", [m for m in firing if not m.acknowledged]))
    if refresh and lasting and sent is not None:
        dues.append((sent + refresh, "updated", []))
    due = [entry for entry in dues if entry[0] <= now]
    for reason in ("opened", "joined", "resolved", "repeated", "updated"):
        for _, why, whom in due:
            if why == reason:
                return GroupPlan(reason=reason, new=[member.id for member in whom], next=now + SETTLE)
    later = [time for time, _, _ in dues]
    if any(member.standing == "suppressed" for member in members):
        later.append(now + RECHECK)
    return GroupPlan(reason=None, next=min(later) if later else None)

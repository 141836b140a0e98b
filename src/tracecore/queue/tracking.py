"""Tracking settings of a task, passed on as the environment variables that the trackers read themselves."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final

from tracecore.queue.task import SpecError, is_secret

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Tracker -> setting -> variable.
VARIABLES: Final[dict[str, dict[str, str]]] = {
    "mlflow": {
        "tracking_uri": "MLFLOW_TRACKING_URI",
        "registry_uri": "MLFLOW_REGISTRY_URI",
        "experiment": "MLFLOW_EXPERIMENT_NAME",
        "experiment_id": "MLFLOW_EXPERIMENT_ID",
        "run_id": "MLFLOW_RUN_ID",
        "run_name": "MLFLOW_RUN_NAME",
        "system_metrics": "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING",
    },
    "tensorboard": {"logdir": "TENSORBOARD_LOGDIR"},
    "wandb": {
        "project": "WANDB_PROJECT",
        "entity": "WANDB_ENTITY",
        "mode": "WANDB_MODE",
        "name": "WANDB_NAME",
        "group": "WANDB_RUN_GROUP",
        "job_type": "WANDB_JOB_TYPE",
        "run_id": "WANDB_RUN_ID",
        "resume": "WANDB_RESUME",
        "tags": "WANDB_TAGS",
        "notes": "WANDB_NOTES",
        "dir": "WANDB_DIR",
        "base_url": "WANDB_BASE_URL",
    },
}


def parse(text: str) -> tuple[str, str, str]:
    """`wandb.project=resnet` as tracker, setting and value.

    Raises:
        SpecError: it is not of that shape, or nobody reads such a setting.
    """
    place, separator, value = text.partition("=")
    tracker, dot, setting = place.partition(".")
    if not separator or not dot:
        raise SpecError(
            f"{text[:80]!r} is no tracking setting: write tracker.setting=value, as in wandb.project=resnet"
        )
    _variable(tracker, setting)
    return tracker, setting, value


def environment(tracking: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The variables for these settings.

    Raises:
        SpecError: nobody reads such a setting.
    """
    return {
        _variable(tracker, setting): value
        for tracker, settings in tracking.items()
        for setting, value in settings.items()
    }


def _variable(tracker: str, setting: str) -> str:
    known = VARIABLES.get(tracker)
    if known is None:
        raise SpecError(f"unknown tracker {tracker!r}: one of {', '.join(VARIABLES)}")
    variable = known.get(setting)
    if variable is None and is_secret(setting):
        raise SpecError(f"{tracker}.{setting} would be kept in the queue for all to read: set it where the worker runs")
    if variable is None:
        near = difflib.get_close_matches(setting, known, 1)
        hint = f", did you mean {near[0]!r}?" if near else f": one of {', '.join(known)}"
        raise SpecError(f"{tracker} has no setting {setting!r}{hint}")
    return variable

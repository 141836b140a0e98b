"""Recipes compiled once, and a short way to see what one stamps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tracecore.recipes import directory
from tracecore.recipes.cases import Recipe, RecipeCase

Stamp = Callable[..., dict[str, Any]]


def _stamper(name: str) -> Stamp:
    recipe = Recipe(directory() / f"{name}.yaml")

    def stamp(
        body: Any = None, attributes: dict[str, Any] | None = None, resource: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        case = RecipeCase(name="", path="", line=0, body=body, attributes=attributes or {}, resource=resource or {})
        outcome = recipe.run(case)
        assert outcome.errors == (), body
        return outcome.attributes

    return stamp


@pytest.fixture(scope="session")
def kernel() -> Stamp:
    """What the kernel recipe stamps on a body."""
    return _stamper("kernel")


@pytest.fixture(scope="session")
def kubernetes() -> Stamp:
    """What the Kubernetes recipe stamps on a body and attributes."""
    return _stamper("kubernetes")


@pytest.fixture(scope="session")
def scheduler() -> Stamp:
    """What the scheduler recipe stamps on a body."""
    return _stamper("scheduler")

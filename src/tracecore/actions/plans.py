"""Plans of some of the recipes, for those who read only the end of a log: made once, and kept for the next process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracecore import recipes
from tracecore.recipes import prepared as kept
from tracecore.recipes.plan import LayerPlan, Prepared, prepare

if TYPE_CHECKING:
    from collections.abc import Sequence


def planned(
    layers: Sequence[str], *, only: Sequence[str] = (), without: Sequence[str] = (), naming: Sequence[str] = ()
) -> LayerPlan:
    """The plan of some processors of these layers.

    Args:
        only: names of processors; empty for all.
        without: names of processors that are left out.
        naming: words one of which a statement of the processor must have; empty for any.
    """

    def is_wanted(processor: recipes.Processor) -> bool:
        if (only and processor.name not in only) or processor.name in without:
            return False
        statements = [line.text for group in processor.groups for line in group.statements]
        return not naming or any(word in statement for statement in statements for word in naming)

    files = [recipes.directory() / file for layer in layers for file in recipes.FILES[layer]]
    asked = repr((tuple(layers), tuple(only), tuple(without), tuple(naming)))
    key = f"part-{kept.key(asked.encode(), *(file.read_bytes() for file in files))}"
    prepared = kept.load(key, Prepared)
    if prepared is None:
        prepared = prepare(processor for layer in layers for processor in recipes.load(layer) if is_wanted(processor))
        kept.store(key, prepared)
    return LayerPlan(prepared, key)

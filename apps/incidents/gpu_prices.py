"""Prices per GPU-hour, as the operator gives them: nothing is assumed about money."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date

from recovery.errors import BadInput
from recovery.figures import positive
from recovery.prices import GpuPrice

_WANTED = '{"H100": {"per_gpu_hour": 2.5, "currency": "EUR", "as_of": "2026-11-01", "source": "framework contract"}}'


def read_prices(text: str) -> Mapping[str, GpuPrice]:
    """Prices by GPU type, from JSON; no text = no price, and then no money is shown anywhere.

    Raises:
        BadInput: for what is no such JSON; the text shows the form.
    """
    if not text.strip():
        return {}
    try:
        given = json.loads(text)
        return {
            gpu_type: GpuPrice(
                gpu_type=gpu_type,
                per_gpu_hour=positive(
                    "per_gpu_hour", float(row["per_gpu_hour"]), "a price", "leave the type out"
                ),
                currency=str(row["currency"]),
                as_of=date.fromisoformat(row["as_of"]),
                source=str(row["source"]),
            )
            for gpu_type, row in given.items()
        }
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise BadInput(
            f"INCIDENTDESK_GPU_PRICES cannot be read ({error!r}): give JSON such as {_WANTED}",
            field="gpu_prices",
        ) from error

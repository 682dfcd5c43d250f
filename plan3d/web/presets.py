"""Names and values that fields of a question can have, for lists of a page."""

from __future__ import annotations

from typing import Any

from plan3d.search.rank_plans import BACKENDS
from plan3d.search.result.objective import OBJECTIVES
from plan3d.search.sampling.samplers import SAMPLERS
from plan3d.simulator.base.documents import SCHEMA
from plan3d.simulator.hardware.precision import CODES, Optimizer
from plan3d.simulator.hardware.software import DEFAULT_SOFTWARE, FINE_TUNING_SOFTWARE
from plan3d.simulator.plan.fields import FIELDS

from ..cli.catalogue.catalogues import models_records, systems_records
from ..cli.catalogue.profiles import clusters_records, software_records
from ..launch_files.registry import EXPORTERS, READERS

OF_MODEL = (
    *("name", "hub_id", "parameters", "active_parameters", "layers", "hidden", "experts"),
    *("sequence", "batch_tokens"),
)
OF_STACK = ("name", "title", "framework")


def presets_record() -> dict[str, Any]:
    """The record of /api/presets."""
    from .. import __version__

    return {
        "schema": SCHEMA,
        "plan3d": __version__,
        "models": [{key: record[key] for key in OF_MODEL} for record in models_records()],
        "clusters": clusters_records(),
        "software": [{key: record[key] for key in OF_STACK} for record in software_records()],
        "default_software": {"all_weights": DEFAULT_SOFTWARE, "adapters": FINE_TUNING_SOFTWARE},
        "frameworks": list(EXPORTERS),
        "launch_files": list(READERS),
        "precisions": list(CODES),
        "optimizers": [one.name.lower().replace("_", "-") for one in Optimizer],
        "systems": [
            {key: record[key] for key in ("name", "meaning")} for record in systems_records()
        ],
        "backends": [*BACKENDS, *SAMPLERS],
        "objectives": list(OBJECTIVES),
        "fields": [_field(name) for name in FIELDS],
    }


def _field(name: str) -> dict[str, Any]:
    """A field of a plan: its meaning, its values, and the one where none is given."""
    record = FIELDS[name]
    default = record.spell(record.default) if record.is_column else None
    values = getattr(record.values, "names", None)
    return {
        "name": name,
        "meaning": record.help,
        "values": list(values) if values else record.values.description,
        "default": int(default) if isinstance(default, bool) else default,
    }

"""Why a step takes as long as it does: parts, differences, sensitivities, provenance."""

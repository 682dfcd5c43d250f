"""Pictures beside those that answers draw of themselves (`.plot()` of a search, an explanation, a
sweep and both comparisons): a notebook shows them, `.save("step.png")` keeps them."""

from __future__ import annotations

from plan3d.simulator.analysis.time_breakdown import waterfall as losses
from plan3d.simulator.reporting import plots
from plan3d.simulator.reporting.palette import Picture, figure
from plan3d.simulator.reporting.report import stage_records
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.uncertainty.memory import fitting_share

__all__ = ["Picture", "memory", "waterfall"]


def waterfall(costs: Costs) -> Picture:
    """From the arithmetic at peak to the step of one plan, in seconds and points of MFU."""
    drawn, one = figure(6.5, 4.6), costs.row()
    plots.waterfall(drawn.add_subplot(), losses(one), one.mfu)
    return Picture(drawn)


def memory(costs: Costs) -> Picture:
    """Bytes of every pipeline rank of one plan beside those of a GPU."""
    drawn, one = figure(6.5, 4.6), costs.row()
    plots.memory_bars(drawn.add_subplot(), stage_records(one), one.capacity, fitting_share(one))
    return Picture(drawn)

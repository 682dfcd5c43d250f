"""Tasks on which one rule at a time can be broken."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.task import Task
from plan3d.simulator.workload.adapters import Adapters
from plan3d.simulator.workload.model import Model


@cache
def task(model="llama-3.1-70b", gpus=64, cluster="h100-sxm", software="megatron-core"):
    return Task(
        Model.preset(model),
        Cluster.profile(cluster, gpus=gpus),
        sequence=2048,
        global_batch=64,
        software=software_profile(software),
    )


def images():
    """A network that is a list of layers."""
    return replace(task(), model=Model.preset("resnet-50"), sequence=1)


def odd(**changes):
    """Sizes that no published model has, so that one rule at a time can be broken."""
    model = Model.preset("llama-3.1-70b")
    (block,) = model.kinds
    block = replace(block, attention=replace(block.attention, **changes))
    return replace(task(), model=replace(model, kinds=(block,)))


def tuned(model="llama-3.1-70b"):
    """Adapters beside frozen weights."""
    return replace(task(model), adapters=Adapters())


def hostless():
    """A cluster of which the host is not known."""
    return replace(task(), cluster=replace(task().cluster, host=None))


def linked():
    """Sites joined by slow links."""
    cluster = Cluster.profile("h100-sxm", gpus=64, site_bandwidth=1e9)
    return replace(task(), cluster=cluster)

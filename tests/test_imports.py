"""Do imports run one way, without heavy packages, and does pyproject.toml list every package?"""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = {"simulator": "plan3d.simulator", "search": "plan3d.search", "plan3d": "plan3d"}

ORDER = {
    "plan3d.simulator": """
        errors
        columns
        units
        topologies
        compression
        mesh
        tensor_grid
        plan_names
        plan_values
        convergence
        json_object
        model
        network
        model_families
        model_config
        presets
        software
        stage_layout
        segments
        plan
        precision
        operators
        grid_products
        uneven_chunks
        schedules
        in_flight
        schedule_idle
        schedule_orders
        schedule_graph
        timeline
        run_conventions
        published_runs
        scores
        textbook
        tables
        calibration
        calibration.columns
        calibration.rowfile
        calibration.timing
        calibration.cases
        calibration.cases_matrix
        calibration.cases_memory
        calibration.cases_layer
        calibration.cases_training
        calibration.suites
        calibration.cases_collective
        calibration.recording
        calibration.measure_ranks
        calibration.measure
        calibration.measurements
        calibration.read_nccl
        calibration.read_trace
        calibration.read_logs
        calibration.readers
        calibration.priors
        calibration.robust
        calibration.plots
        palette
        profile_schema
        hardware_profile
        gemm_tables
        layer_tables
        accelerator
        hardware
        task
        rule
        expert_rules
        host
        kernels
        collectives
        layer_kinds
        layer_gemms
        layer_communication
        grid_communication
        footprint
        layers
        listed_layers
        pipeline_rules
        placements
        ranks
        stages
        exchanges
        segment_rules
        segment_stages
        data_parallel
        memory
        offload
        groups
        segment_groups
        stage_costs
        sync_rules
        grid_rules
        offload_rules
        rules
        step
        plan_timeline
        trace
        sync_validation
        run_plans
        run_questions
        validation
        provenance
        traffic
        grid_traffic
        calibration.subjects
        calibration.subjects_collective
        calibration.subjects_link
        calibration.profile_text
        calibration.step_scale
        losses
        host_report
        explain
        report
        gantt
        validation_plot
        contrast
        sensitivity
        roofline
        plots
        plots_many
        timed_rows
        layer_fit
        cross_validation
        calibration.subjects_training
        calibration.layer_times
        calibration.whole_steps
        calibration.fit
        calibration.comparison
        calibration.build
        calibration.view
    """,
    "plan3d.search": """
        systems
        axes
        objective
        space
        system_plans
        pareto
        backend
        exhaustive
        comparison
        bounds
        branch_and_bound
        operator_graph
        cp_sat
        tensor_partition
        stage_floor
        layer_choices
        layer_table
        layer_program
        layer_step
        layer_plans
        export
        export.shape
        export.launch_file
        export.documents
        export.exporter
        export.shell_text
        export.shell_conditions
        export.shell_words
        export.flags
        export.launch_script
        export.megatron_model
        export.megatron_offload
        export.megatron_rules
        export.megatron
        export.megatron_read
        export.megatron_bridge
        export.torchtitan_model
        export.torchtitan_rules
        export.torchtitan
        export.torchtitan_recipe
        export.torchtitan_read
        export.deepspeed
        export.deepspeed_read
        export.nanotron
        export.nanotron_read
        export.registry
        sweep_file
        problem
        diagram
        uniform
        stage_variables
        staged
        sampling
        alike
        reinforcement_learning
        zeroth_order
        gymnasium_environment
        labels
        pipelines
        intervals
        stage_table
        stage_bounds
        label_pass
        stage_search
        dynamic_programming
        integer_programming
        finder
        edits
        advice
        by_system
        beyond
        explanation
        sweep
        variation
        race
        race_plot
    """,
    "plan3d": """
        cli_parser
        cli_launch_options
        cli_output
        cli_goal
        cli_task
        cli_system
        cli_plan
        cli_catalogue
        cli_sweep_options
        cli_task_options
        cli_system_options
        cli_options
        cli_calibrate_options
        cli_calibrate
        cli_plot
        cli_sweep_points
        cli_proof
        cli_views
        cli_export
        cli_validate
        cli_timeline
        cli_report
        cli_verbs
        cli_import
        cli_explain
        cli_sweep
        cli_systems
        cli_compare
        cli
        __main__
    """,
}
"""Rooms of each package: one may import those before it, in its package and in earlier ones."""

LAZY = {
    "plan3d.simulator.model": {"plan3d.simulator.presets", "plan3d.simulator.model_config"},
    "plan3d.simulator.step": {"plan3d.simulator.report"},
}
"""Arrows that run back from inside a function: Model.preset, Model.from_config, Costs.to_frame."""

HEAVY = {"scipy", "pandas", "ortools", "networkx", "matplotlib", "rich", "torch", "shtab", "yaml"}
HEAVY |= {"cmaes", "gymnasium"}
"""Loaded by the functions that need them."""


def modules():
    """Module name -> file of every room in the tree."""
    found = {}
    for folder, package in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            inside = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join((package, *inside)).removesuffix(".__init__")] = path
    return found


MODULES = modules()
RANK = {
    name: i
    for i, name in enumerate(
        name
        for package, rooms in ORDER.items()
        for name in (package, *(f"{package}.{room}" for room in rooms.split()))
    )
}
"""Position of a module; an import must point to a smaller one."""


def imports(name):
    """(target module, whether inside a function) of every import in a module."""
    path = MODULES[name]
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    tree = ast.parse(path.read_text())
    inner = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in inner
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = package.split(".")[: len(package.split(".")) + 1 - node.level]
                base = ".".join([*up, *base.split(".")] if base else up)
            for alias in node.names:
                submodule = f"{base}.{alias.name}"
                yield submodule if submodule in MODULES else base, id(node) in inner


@pytest.mark.parametrize("name", MODULES)
def test_imports_run_one_way(name):
    assert name in RANK, f"{name} has no place in ORDER"
    for target, inside in imports(name):
        if target.partition(".")[0] != "plan3d" or target == "plan3d.hardware_profiles":
            continue
        assert target in MODULES, f"{name} imports {target}, which is not there"
        if inside and target in LAZY.get(name, ()):
            continue
        assert RANK[target] < RANK[name], f"{name} imports {target}, which comes after it"


def test_the_simulator_knows_nothing_of_search():
    for name in MODULES:
        if name.startswith("plan3d.simulator"):
            found = {target for target, _ in imports(name)}
            assert not any(t.startswith(("plan3d.search", "search")) for t in found), name


@pytest.mark.parametrize("name", MODULES)
def test_only_numpy_and_the_standard_library_at_module_top(name):
    for target, inside in imports(name):
        top = target.partition(".")[0]
        if not inside:
            assert top not in HEAVY, f"{name} imports {target} at its top"
            assert top in {"plan3d", "numpy", *sys.stdlib_module_names}, f"{name}: {target}"


def test_nothing_heavy_is_loaded():
    code = (
        "import sys, plan3d, plan3d.simulator.step, plan3d.search.finder;"
        f"print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_order_has_no_name_twice():
    assert len(RANK) == sum(1 + len(rooms.split()) for rooms in ORDER.values())


def test_pyproject_lists_every_package():
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {**FOLDERS, "hardware_profiles": "plan3d.hardware_profiles"}
    found = set()
    for folder, package in folders.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            inside = init.parent.relative_to(ROOT / folder).parts
            found.add(".".join((package, *inside)))
    assert found == set(setuptools["packages"])
    placed = {package: folder for folder, package in folders.items() if package != folder}
    assert setuptools["package-dir"] == placed

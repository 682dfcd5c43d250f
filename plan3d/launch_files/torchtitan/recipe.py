"""Recipes of torchtitan 0.3, which are Python, read from the syntax tree as jobs of 0.2.

A recipe is a function without arguments that returns Trainer.Config; a command names it by module
and function, and replaces keys of it. Both batches are read: sequences (0.3.0), and tokens of a
micro-batch and of a step, as later versions have them.

Source: torchtitan 0.3.0, trainer.py (Trainer.Config), config/configs.py, config/manager.py,
distributed/activation_checkpoint.py, components/loss.py (ChunkedLossWrapper); the main branch of
August 2026 (num_tokens_per_microbatch_per_dp_rank, num_pp_microbatches).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plan3d.simulator.base.errors import LONGEST_QUESTION, InputError
from plan3d.simulator.plan.field_values import Loss, Recompute

from ..launch_file import NO_OPTIONS, Launch, ReaderOptions, UnreadSetting
from ..recipes.evaluation import Module, Session, follow
from ..recipes.expressions import Function
from ..recipes.selection import Recipe, chosen_recipe, recipes_of
from ..recipes.values import Made, Open, is_literal
from .job import read_job
from .keys import FLOAT8, FLOAT8_EXPERTS, TABLE
from .model_flavors import READ
from .registered import ROWS, registered_recipe

TITLE = "torchtitan recipe"
Overrides = Mapping[tuple[str, ...], Any]
"""Values by path that a command sets."""
SECTIONS = ("training", "parallelism", "compile", "debug", "comm")
"""Sections whose fields are keys of a job."""
NEUTRAL = frozenset(
    (
        *("model_spec", "loss", "optimizer", "activation_checkpoint", "lr_scheduler", "metrics"),
        *("hf_assets_path", "dump_folder", "profiler", "tokenizer", "dataloader", "checkpoint"),
        *("validator",),
    )
)
"""Fields of a recipe that are read on their own, or change neither the model nor a step."""
CONVERTERS = {
    "Float8LinearConverter": FLOAT8,
    "Float8GroupedExpertsConverter": FLOAT8_EXPERTS,
}
"""Converters of 0.2 by class."""
MODES = {"FullAC": "full", "SelectiveAC": "selective", "MemoryBudgetAC": "memory_budget"}
"""activation_checkpoint.mode of 0.2 by class."""
KEPT_PRODUCTS = (
    "activation_checkpoint is SelectiveAC, which keeps the result of every product: no plan has it "
    "(nearest: FullAC or None)"
)
REGISTRY = "model_registry"
_KEYS = {row.key for row in TABLE}


def read_recipe(text: str, file: str, options: ReaderOptions = NO_OPTIONS) -> Launch:
    """The launch of the recipe of a Python file. Raises InputError for Python that makes none."""

    def read(session: Session, module: Module) -> Recipe:
        recipes = recipes_of(session, module, _kind_of)
        return chosen_recipe(recipes, file, session, "torchtitan")

    recipe = follow(text, file, options.inputs, _library, read)
    return launch_of(recipe.made, file, options, recipe.name)


def recipe_of_command(module: str, name: str, file: str, options: ReaderOptions) -> Made:
    """The recipe of a module: of a file beside the command, else one that torchtitan ships.

    Raises InputError for one that is neither.
    """
    read_source, path = options.inputs.read_source, module.replace(".", "/")
    for source in (f"{path}/config_registry.py", f"{path}.py"):
        text = read_source(source) if read_source else None
        if text is None:
            continue
        session = Session({}, read_source, _library)
        beside = Module(text, source, session)
        beside.run()
        function = beside.scope.values.get(name)
        made = session.call(function, [], {}) if isinstance(function, Function) else None
        if not _kind_of(made):
            raise InputError(f"{file}: {source} has no recipe {name[:60]}")
        assert isinstance(made, Made)
        return made
    registered = registered_recipe(name)
    if registered is None:
        known = [key for key, row in ROWS.items() if row["family"] == path.rpartition("/")[2]]
        where = f"torchtitan/models/{module}/config_registry" if known else path
        names = f" ({', '.join(known)})" if known else ""
        raise InputError(
            f"{file}: starts torchtitan with the recipe {name[:60]} of {module[:60]}, which is "
            f"neither one that plan3d knows{names} nor beside it: give that file, "
            f"{where[:80]}.py, with --set recipe={name[:60]}",
            LONGEST_QUESTION,
        )
    return registered


def _library(name: str, arguments: list[Any], fields: dict[str, Any]) -> Made | None:
    """What a function of a registry returns; None of any other."""
    in_registry = "config_registry" in name or "." not in name
    return registered_recipe(name.rpartition(".")[2]) if in_registry else None


def _kind_of(value: Any) -> str:
    is_recipe = isinstance(value, Made) and value.callee.endswith("Trainer.Config")
    return "torchtitan" if is_recipe else ""


def launch_of(
    made: Made, file: str, options: ReaderOptions, name: str, overrides: Overrides | None = None
) -> Launch:
    """The launch of a recipe, whose keys a command replaces."""
    parts = {key: _fields(made, key) for key in SECTIONS}
    spec, checkpointing = made.fields.get("model_spec"), _checkpointing(made, file)
    for path, value in (overrides or {}).items():
        if path == ("activation_checkpoint",):
            checkpointing = value
        else:
            parts.setdefault(path[0], {})[".".join(path[1:])] = value
    job = {key: _literals(fields, key, file) for key, fields in parts.items()}
    family, flavor, converters = _model(spec, name, file)
    by_name = {one.callee.split(".")[-2:][0]: one.fields for one in converters}
    names = [CONVERTERS.get(one, one) for one in by_name]
    job["model"] = {"name": family, "flavor": flavor, "converters": names}
    recipe_name = by_name.get("Float8LinearConverter", {}).get("recipe_name", "rowwise")
    job["quantize"] = {
        "linear": {"float8": {"recipe_name": recipe_name}},
        "grouped_mm": {"float8": {"fqns": ["experts"]}},
    }
    option = {"selective_ac_option": "op"} if checkpointing == "selective" else {}
    job["activation_checkpoint"] = {"mode": checkpointing, **option}
    _as_job(job, file)
    job = {key: section for key, section in job.items() if section or key == "training"}
    launch = read_job(job, file, file, options)
    launch.title = TITLE
    if checkpointing == "selective":
        launch.plan["recompute"] = int(Recompute.NONE)
        launch.unmodelled["recompute"] = KEPT_PRODUCTS
    if job.get("parallelism", {}).get("enable_sequence_parallel") is False:
        launch.plan["sequence_parallel"] = 0
    loss = made.fields.get("loss")
    if isinstance(loss, Made) and "ChunkedLoss" in loss.callee:
        launch.plan["loss"] = int(Loss.CHUNKED)
    _note_converters(spec, launch)
    _note_optimizer(made.fields.get("optimizer"), launch)
    known = NEUTRAL | set(SECTIONS)
    launch.unread = [one for one in launch.unread if one.path[:1] != ("model",)]
    launch.unread += [
        UnreadSetting(f"line {made.line}", f"{key} is not read", affects_cost=True)
        for key in made.fields
        if key not in known
    ]
    return launch


def _fields(made: Made, key: str) -> dict[str, Any]:
    section = made.fields.get(key)
    return dict(section.fields) if isinstance(section, Made) else {}


def _literals(fields: dict[str, Any], section: str, file: str) -> dict[str, Any]:
    """The fields that are stated. Raises InputError that asks for those that are needed and are
    not."""
    asked = []
    for key, value in fields.items():
        if isinstance(value, Open) and (f"{section}.{key}" in _KEYS or key in TOKENS):
            name = value.names[0] if value.names else key
            asked.append(f"{section}.{key} is {value.text}: --set {name}=VALUE")
    if asked:
        raise InputError(f"{file}: {'; '.join(asked)}", LONGEST_QUESTION)
    return {key: value for key, value in fields.items() if is_literal(value)}


def _checkpointing(made: Made, file: str) -> str:
    """The mode of recompute; selective where a recipe names none."""
    value = made.fields.get("activation_checkpoint", Made("SelectiveAC.Config"))
    if value is None:
        return "none"
    if isinstance(value, Open):
        raise InputError(f"{file}: activation_checkpoint is {value.text}: --with recompute=VALUE")
    name = value.callee.split(".")[-2:][0] if isinstance(value, Made) else str(value)
    return MODES.get(name, name)


def _model(spec: Any, name: str, file: str) -> tuple[str, str, list[Made]]:
    """torchtitan's model, its flavor and its converters. Raises InputError where a recipe does not
    state them."""
    flavor = spec.arguments[0] if isinstance(spec, Made) and spec.arguments else None
    flavor = spec.fields.get("flavor", flavor) if isinstance(spec, Made) else None
    if not isinstance(spec, Made) or spec.name != REGISTRY or not isinstance(flavor, str):
        raise InputError(f"{file}: model_spec is no {REGISTRY}(...) of a flavor: give --model")
    parts = [*spec.callee.split(".")[:-1], *file.split("/")[:-1]]
    families = sorted({family for family, _ in READ}, key=len, reverse=True)
    family = next((part for part in parts if part in families), "")
    family = family or next((one for one in families if one in name), parts[-1] if parts else name)
    listed = spec.fields.get("converters")
    converters = [one for one in listed or () if isinstance(one, Made)] if listed else []
    lora = [one for one in converters if "LoRA" in one.callee]
    if lora or spec.fields.get("num_mtp_layers") not in (None, 0):
        what = "adapters" if lora else "multi-token prediction"
        raise InputError(f"{file}: {what} of torchtitan are not read: give the plan to estimate")
    return family, flavor, converters


TOKENS = (
    *("num_tokens_per_microbatch_per_dp_rank", "num_tokens_per_train_step", "max_context_length"),
    "num_pp_microbatches",
)
"""Keys of the batch of later versions."""


def _as_job(job: dict[str, dict[str, Any]], file: str) -> None:
    """Give a recipe the keys of a job of 0.2. Raises InputError for tokens that are no whole
    sequences."""
    training, parallelism, compile_config = (
        job[key] for key in ("training", "parallelism", "compile")
    )
    if compile_config.pop("enable_async_tensor_parallel", False) is True:
        parallelism["enable_async_tensor_parallel"] = True
    if "DualPipe" in str(parallelism.get("pipeline_parallel_schedule")):
        parallelism["pipeline_parallel_expert_parallel_overlap"] = False
    if parallelism.get("pipeline_parallel_layers_per_stage") is None:
        parallelism.pop("pipeline_parallel_layers_per_stage", None)
    if not {*training, *parallelism} & {*TOKENS}:
        training.setdefault("local_batch_size", 8)
        return
    length = training.pop("max_context_length", 2048)
    tokens = training.pop("num_tokens_per_microbatch_per_dp_rank", 16384)
    step = training.pop("num_tokens_per_train_step", -1)
    pieces = parallelism.pop("num_pp_microbatches", 1)
    sizes = {"max_context_length": length, "num_pp_microbatches": pieces, "tokens": tokens}
    wrong = [key for key, value in sizes.items() if not isinstance(value, int) or value < 1]
    if wrong or not isinstance(step, int) or tokens % length or (step > 0 and step % length):
        raise InputError(
            f"{file}: {tokens} tokens of a micro-batch and {step} of a step must be whole "
            f"sequences of max_context_length = {length}"
        )
    staged = parallelism.get("pipeline_parallel_degree", 1) != 1
    training["seq_len"] = length
    training["local_batch_size"] = tokens // length * (pieces if staged else 1)
    training["global_batch_size"] = step // length if step > 0 else -1
    if staged:
        parallelism["pipeline_parallel_microbatch_size"] = tokens // length


def _note_converters(spec: Any, launch: Launch) -> None:
    """Note converters that are not stated, and another exchange of tokens."""
    listed = spec.fields.get("converters") or []
    if isinstance(listed, Open):
        what = f"what {listed} names"
        launch.unmodelled["precision"] = f"its layers are converted by {what}, not modelled"
    backend = spec.fields.get("moe_comm_backend")
    if backend not in (None, "standard"):
        text = f"{backend} (predicted as all-to-all)"
        launch.unread.append(UnreadSetting("moe_comm_backend", text, affects_cost=True))


def _note_optimizer(made: Any, launch: Launch) -> None:
    """Note optimizers that are not AdamW."""
    if made is None or (isinstance(made, Made) and made.name == "default_adamw"):
        return
    groups = made.fields.get("param_groups") if isinstance(made, Made) else None
    names = [
        str(one.fields.get("optimizer_name"))
        for one in (groups if isinstance(groups, list) else [])
        if isinstance(one, Made)
    ]
    names = names or [str(made.fields.get("name", made.name) if isinstance(made, Made) else made)]
    others = [name for name in names if name not in ("Adam", "AdamW")]
    if others:
        launch.unmodelled["optimizer"] = f"its optimizer is {others[0][:60]}, which is not modelled"

"""Settings that trainers print when they start, as a file of the reader that takes them.

Source: Megatron-LM, megatron/training/arguments.py (_print_args); torchtitan 0.2,
config/job_config.py (maybe_log) and distributed/parallel_dims.py; NeMo 1, examples/nlp/
language_modeling/megatron_gpt_pretraining.py; DeepSpeed, runtime/config.py (print_user_config);
nanotron, src/nanotron/trainer.py (pformat of Config); Megatron-Bridge, src/megatron/bridge/
training/utils/config_utils.py (print_yaml);
transformers, TrainingArguments.__str__ and Trainer._inner_training_loop; ms-swift,
swift/pipelines/base.py; axolotl, src/axolotl/cli/config.py.
"""

from __future__ import annotations

import ast
import base64
import json
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

from plan3d.simulator.base.documents import format_toml, parse_json
from plan3d.simulator.base.errors import InputError

from ..documents import DEEPEST


class Printed(NamedTuple):
    """What a trainer printed."""

    reader: str
    """The name of the reader (registry.READERS)."""
    ending: str
    """Of the name of such a file."""
    text: str
    gpus: int | None = None
    """GPUs of the run, where the log says so outside the settings."""


LONGEST = 1_000_000
"""Characters of the longest settings."""
_ARGUMENT = re.compile(r"(?:^|\s)([a-z]\w*) \.{2,}\s?(.*?)(?<!\.)\.*\s*$", re.M)
_TRUTH = re.compile(r"(None|True|False)(?![A-Za-z_]).*")
"""A value after which another program may have written in the same line."""
_PADDED = re.compile(r"padded vocab \(size: (\d{1,9})\)")
_MESH = re.compile(r"Building \d-D device mesh with \[[^\]\n]{0,200}\], \[([\d, ]{1,60})\]")
_PARALLELISM = re.compile(r"device mesh with parallelism: ([\w=, ]{1,200})")
_BATCH = re.compile(r"Total train batch size [^=\n]{0,80}= ([\d,]+)")
_MICRO = re.compile(r"Instantaneous batch size per device = ([\d,]+)")
_STEPS = re.compile(r"Gradient Accumulation steps = ([\d,]+)")
_PROCESSES = re.compile(r"\brank: \d+, local_rank: \d+, world_size: (\d{1,7}),")
_CACHED = re.compile(r"models--([\w.]{1,80}(?:-[\w.]{1,80}){0,9}?)--([\w.-]{1,120})/")
"""A model in the cache of the Hub."""
WORLD = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
"""Axes of torchtitan whose product is the number of GPUs."""
CHUNKS = "virtual_pipeline_model_parallel_size"
OTHER_NAMES = {
    "fp8": "fp8_format",
    "fp4": "fp4_format",
    CHUNKS: "num_virtual_stages_per_pipeline_rank",
}
"""Flags of Megatron-LM by arguments that have another name."""
NEGATIONS = {
    "add_bias_linear": "disable_bias_linear",
    **{
        f"{name}_fusion": f"no_{name}_fusion"
        for name in ("gradient_accumulation", "masked_softmax", "bias_swiglu", "bias_dropout")
    },
}
"""Flags that switch an argument off."""
ABSENT = ("None", "False", "[]", "", "torch.float32")
"""Values of arguments that are not set; formats of state have 32 bits unless they are."""
FORMATS = {
    "torch.bfloat16": "bf16",
    "torch.float16": "fp16",
    "torch.uint8": "fp8",
}
"""Words of --exp-avg-dtype and its like, by what validate_args makes of them."""
NEEDS = {
    "num_query_groups": "group_query_attention",
    "fp8_recipe": "fp8",
    "data_parallel_sharding_strategy": "use_megatron_fsdp",
    "expert_model_parallel_size": "num_experts",
    "expert_tensor_parallel_size": "num_experts",
    "moe_token_dispatcher_type": "num_experts",
    "moe_layer_freq": "num_experts",
    "moe_router_topk": "num_experts",
    "moe_ffn_hidden_size": "num_experts",
    "moe_train_capacity_factor": "num_experts",
    "moe_eval_capacity_factor": "num_experts",
    "moe_min_capacity": "num_experts",
    "ds_sequence_parallel_fpdt_chunk_size": "ds_sequence_parallel_fpdt",
    "recompute_modules": "recompute_granularity",
}
"""Arguments that have an effect, and a default that is printed, only beside another."""
NOT_FLAGS = ("num_layers_per_virtual_pipeline_stage", "encoder_num_layers", "encoder_seq_length")
"""Arguments that Megatron-LM works out from others."""
IDLE = {
    ("num_experts", "[1]"),
    ("tile_factor", "1"),
    ("zero_allgather_bucket_size", "0.0"),
    ("zero_reduce_bucket_size", "0.0"),
}
"""Defaults of Megatron-DeepSpeed with which an argument has no effect."""
SEVERAL_NUMBERS = ("num_experts",)
"""Arguments that take several numbers, printed as a list (Megatron-DeepSpeed)."""
OTHER_MODELS = (
    *("hybrid_override_pattern", "hybrid_layer_pattern", "is_hybrid_model", "spec"),
    *("heterogeneous_layers_config_path", "experimental_attention_variant", "vision_pretraining"),
    *("retro_add_retriever", "glu_activation", "squared_relu", "multi_query_attention"),
)
"""Arguments of which any value is of a model that no flag describes."""


def megatron(text: str, at: int) -> Printed | None:
    """The arguments of Megatron-LM, or of Megatron-DeepSpeed, as a command."""
    end = text.find("end of arguments", at)
    values = _printed_values(text[at : end if end > 0 else at + LONGEST])
    padded = _PADDED.search(text, at)
    if values.get("vocab_size", "None") in ABSENT and padded:
        values["vocab_size"] = padded[1]
    return megatron_arguments(values, text)


def megatron_arguments(values: dict[str, str], text: str = "") -> Printed | None:
    """The same of the texts of values by name; None where they have no model. `text`: that in
    which DeepSpeed prints its configuration."""
    if "num_layers" not in values:
        return None
    words = list(argument_words(values))
    world = values.get("world_size", "")
    launcher = f"torchrun --nnodes 1 --nproc-per-node {world} " if world.isdecimal() else ""
    command = f"{launcher}pretrain_gpt.py {' '.join(words)}\n"
    if values.get("deepspeed") != "True":
        return Printed("megatron", "sh", command)
    return Printed("deepspeed", "sh", _engine_configuration(text) + command)


def _printed_values(text: str) -> dict[str, str]:
    """The values of arguments by name; those of defaults without effect are None."""
    values = {name: _TRUTH.sub(r"\1", value) for name, value in _ARGUMENT.findall(text)}
    return {name: "None" if (name, value) in IDLE else value for name, value in values.items()}


def other_model(text: str) -> str:
    """An argument of Megatron-LM that says that the model is another than its flags describe; ''
    where none does."""
    for name in OTHER_MODELS:
        match = re.search(rf"^\s*{name} \.{{2,}}\s?(\S.*?)\s*$", text, re.M)
        if match and match[1] not in ABSENT:
            return f"{name} {match[1][:60]}"
    return ""


def argument_words(values: dict[str, str]) -> Iterator[str]:
    """Arguments as flags: those that are set."""
    for name, value in values.items():
        need = NEEDS.get(name)
        if name.startswith("muon_") and "muon" not in values.get("optimizer", ""):
            continue
        if name in NOT_FLAGS or (need and values.get(need, "None") in ABSENT):
            continue
        if name in NEGATIONS:
            if value == "False":
                yield _flag(NEGATIONS[name])
            continue
        if name == "overlap_p2p_comm":
            if value == "False" and values.get(CHUNKS, "None") not in ABSENT:
                yield "--no-overlap-p2p-communication"
            continue
        if value in ABSENT:
            continue
        if name in SEVERAL_NUMBERS:
            value = value.strip("[]").replace(",", "")
        flag = _flag(OTHER_NAMES.get(name, name))
        several = name in SEVERAL_NUMBERS and re.fullmatch(r"[\d ]+", value)
        words = value if several else _quoted(FORMATS.get(value, value))
        yield flag if value == "True" else f"{flag} {words}"


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _quoted(value: str) -> str:
    """A value as words of a shell: a list or a tuple without spaces and quotes, texts of a list as
    words."""
    if value[:1] in "[(":
        items = _python_value(value, ())
        if not isinstance(items, list | tuple):
            return "''"
        if items and all(isinstance(item, str) for item in items):
            return " ".join(f"'{_without_quotes(item)}'" for item in items)
        text = ",".join(map(str, items))
        return f"'[{text}]'" if value[0] == "[" else f"'{text}'"
    return f"'{_without_quotes(value)}'"


def _without_quotes(text: str) -> str:
    """A text that can stand in single quotes."""
    return text.replace("'", "").replace("\n", " ")


def torchtitan(text: str, at: int) -> Printed | None:
    """The job of torchtitan as TOML."""
    content = _literal(text, text.find("{", at))
    if not isinstance(content, dict):
        return None
    mesh, named = _MESH.search(text), _PARALLELISM.search(text)
    gpus = None
    if mesh:
        gpus = prod(int(size) for size in mesh[1].split(",") if size.strip().isdecimal())
    elif named:
        sizes = dict(part.strip().split("=") for part in named[1].split(",") if "=" in part)
        gpus = prod(int(sizes.get(axis, "1")) for axis in WORLD)
    return Printed("torchtitan", "toml", format_toml(_without_none(content)), gpus)


def nemo(text: str, at: int) -> Printed | None:
    """The configuration of NeMo 1 as YAML."""
    start = text.find("\n", text.find("[NeMo", at))
    end = text.find("\n[NeMo", start)
    block = text[start + 1 : end if end > 0 else start + LONGEST] if start > 0 else ""
    return Printed("nemo", "yaml", textwrap.dedent(block)) if "trainer:" in block else None


def bridge(text: str, at: int) -> Printed | None:
    """The configuration of Megatron-Bridge as YAML; the last, where a script prints its own before
    its overrides."""
    start = text.rfind(BRIDGE, at)
    block = re.match(r"(?:(?:[ -] .*|[\w-]+:.*)\n)+", text[start : start + LONGEST])
    return Printed("megatron-bridge-config", "yaml", block[0]) if block else None


BRIDGE = "_target_: megatron.bridge.training.config.ConfigContainer\n"
"""The first line of the configuration of Megatron-Bridge, whose keys are sorted."""


def kept_settings(values: dict[str, Any]) -> Printed | None:
    """The settings that a tracker of runs keeps of one, by name; None where none of a trainer that
    is read are among them.

    Source: Megatron-LM, megatron/training/global_vars.py (vars(args)); transformers,
    integrations/integration_utils.py (WandbCallback: arguments beside the model's configuration);
    nanotron, src/nanotron/trainer.py; torchtitan, components/metrics.py (its job).
    """
    texts = {name: str(value) for name, value in values.items()}
    if "tensor_model_parallel_size" in values:
        return megatron_arguments(texts)
    if "parallelism" in values and "job" in values:
        return Printed("torchtitan", "toml", format_toml(_without_none(values)))
    for name, reader in (("parallelism", "nanotron"), ("per_device_train_batch_size", "trainer")):
        if name in values:
            return _as_yaml(reader, values, None)
    return None


def axolotl(text: str, at: int) -> Printed | None:
    """The configuration of axolotl, which is JSON, and so YAML."""
    content = _literal(text, text.find("{", at))
    return _as_yaml("axolotl", content, _trainer_gpus(text))


def swift(text: str, at: int) -> Printed | None:
    """The arguments of ms-swift."""
    values = _constructed(text, text.find("(", at))
    reader = "megatron-swift" if "tensor_model_parallel_size" in values else "ms-swift"
    world = _PROCESSES.search(text)
    return _as_yaml(reader, values, int(world[1]) if world else _trainer_gpus(text))


def trainer(text: str, at: int) -> Printed | None:
    """The arguments of Hugging Face's Trainer."""
    values = _constructed(text, text.find("(", at))
    if not values.get("fsdp"):
        values.pop("fsdp", None)
    cached = _CACHED.search(text)
    if cached and "model_name_or_path" not in values:
        values["model_name_or_path"] = f"{cached[1]}/{cached[2]}"
    return _as_yaml("trainer", values, _trainer_gpus(text))


def nanotron(text: str, at: int) -> Printed | None:
    """The configuration of nanotron: dataclasses inside each other, as pprint prints them."""
    start = text.find("Config(", at)
    block = _ENUMERATION.sub(r"'\1'", _OBJECT.sub(r"'\1'", text[start : start + LONGEST]))
    end = _closing(block)
    try:
        node = ast.parse(block[:end], mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    content = _fields_of(node)
    engine = content.get("parallelism", {}) if isinstance(content, dict) else {}
    if not isinstance(engine, dict):
        return None
    engine["pp_engine"] = ENGINES.get(str(engine.get("pp_engine")), engine.get("pp_engine"))
    return _as_yaml("nanotron", content, None)


ENGINES = {
    "OneForwardOneBackwardPipelineEngine": "1f1b",
    "AllForwardAllBackwardPipelineEngine": "afab",
}
"""Pipeline engines of nanotron by class."""
_ENUMERATION = re.compile(r"<\w+\.(\w+): [^>\n]{0,80}>")
_OBJECT = re.compile(r"<(?:\w+\.)+(\w+) object at 0x\w+>")


def _closing(text: str) -> int:
    """Where the first bracket of a text is closed."""
    depth = 0
    for match in re.finditer(r"[()]|'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"", text):
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if depth == 0 and match[0] == ")":
            return match.end()
    return len(text)


def _fields_of(node: ast.expr, depth: int = 0) -> Any:
    """The fields of a dataclass that was printed, without those that are None; names as texts."""
    if isinstance(node, ast.Call) and node.keywords and depth < DEEPEST:
        fields = {one.arg: _fields_of(one.value, depth + 1) for one in node.keywords if one.arg}
        return {name: value for name, value in fields.items() if value is not None}
    if isinstance(node, ast.Call) and node.args:
        return _fields_of(node.args[0], depth + 1) if depth < DEEPEST else None
    if isinstance(node, ast.List) and depth < DEEPEST:
        return [_fields_of(one, depth + 1) for one in node.elts]
    if isinstance(node, ast.Attribute):
        return node.attr
    return _python_value(ast.unparse(node), None)


def deepspeed(text: str, at: int) -> Printed | None:
    """The configuration of DeepSpeed."""
    content = _literal(text, text.find("{", at))
    if not isinstance(content, dict):
        return None
    return Printed("deepspeed", "json", json.dumps(_whole_numbers(content)), _trainer_gpus(text))


def _whole_numbers(content: Any) -> Any:
    """A configuration with whole numbers from 1,000, which DeepSpeed prints as 1.024000e+03."""
    if isinstance(content, dict):
        return {key: _whole_numbers(value) for key, value in content.items()}
    is_whole = isinstance(content, float) and content.is_integer() and abs(content) >= 1000
    return int(content) if is_whole else content


def runner(text: str, at: int) -> Printed | None:
    """The command of the Trainer that DeepSpeed's launcher prints, with the GPUs of its hosts, and
    the configuration that the engine prints in place of its file."""
    from ..registry import framework_of_file

    found = _RUN.match(text, at)
    if found is None:
        return None
    try:
        hosts = parse_json(base64.b64decode(found[1] + "==").decode(), "world_info")
        gpus = sum(map(len, hosts.values()))
        command = f"deepspeed --num_nodes 1 --num_gpus {gpus} {found[2]}\n"
        if not gpus or framework_of_file(command, "run.sh") != "trainer-command":
            return None
    except (ValueError, TypeError, AttributeError, RecursionError, InputError):
        return None
    return Printed("trainer-command", "sh", _engine_configuration(text) + command)


def _engine_configuration(text: str) -> str:
    """The configuration that DeepSpeed's engine prints, as the here-document of a script; '' where
    it prints none."""
    engine = re.search(_ENGINE, text)
    content = _literal(text, text.find("{", engine.start())) if engine else None
    return f"cat > ds.json <<'END'\n{json.dumps(_whole_numbers(content))}\nEND\n" if content else ""


_ENGINE = r"\bjson = \{"
_RUN = re.compile(r".{0,300}--world_info=([\w+/-]{1,4000})=* .{0,400}?(\S+\.py .{1,20000})$", re.M)


def _as_yaml(reader: str, content: Any, gpus: int | None) -> Printed | None:
    """Values as a document; JSON is YAML."""
    if not isinstance(content, dict) or not content:
        return None
    return Printed(reader, "yaml", json.dumps(content, default=str), gpus)


def _literal(text: str, at: int) -> Any:
    """The JSON object, or the dict as Python prints it on one line, at a position; None where there
    is none."""
    if at < 0:
        return None
    try:
        return json.JSONDecoder().raw_decode(text[at : at + LONGEST])[0]
    except (ValueError, RecursionError):
        line = text[at : at + LONGEST].partition("\n")[0]
    return _python_value(line, None)


def _python_value(text: str, default: Any) -> Any:
    """The value that Python prints so; the default for what is no literal."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return default


OTHER_WORDS = {"OptimizerNames.ADAMW_BNB": "adamw_bnb_8bit"}
"""Members of enumerations by the texts of which they are, where those differ in more than letters
(transformers, training_args.py); since Python 3.12 their names are printed."""
_TEXT_OF = re.compile(r"^<\w+\.\w+: '(.*)'>$")
"""A member of an enumeration with its text."""


def _constructed(text: str, at: int) -> dict[str, Any]:
    """The values of `Name(key=value, ...)` as dataclasses are printed: a line or a comma each."""
    if at < 0:
        return {}
    inside = text[at + 1 : at + LONGEST]
    end = re.search(r"^\)|\)\s*$", inside, re.M)
    out: dict[str, Any] = {}
    for match in re.finditer(
        r"(?:^|,\s*)(\w+)=(.*?)(?=,\s*\n?\s*\w+=|,?\s*\Z)",
        inside[: end.start() if end else 0],
        re.S,
    ):
        word = _TEXT_OF.sub(r"\1", match[2].strip())
        word = re.sub(r"^<\w+\.(\w+): .*>$", r"\1", word)
        out[match[1]] = _python_value(match[2], OTHER_WORDS.get(word, word))
    return out


def _trainer_gpus(text: str) -> int | None:
    """GPUs of a run of the Trainer: batch over micro-batch and accumulation."""
    found = [pattern.search(text) for pattern in (_BATCH, _MICRO, _STEPS)]
    if not all(found):
        return None
    batch, micro, steps = (int(one[1].replace(",", "")[:9]) for one in found if one)
    return batch // (micro * steps) if micro * steps and batch % (micro * steps) == 0 else None


def _without_none(content: Any) -> Any:
    """A document without values that are None, which TOML has not."""
    if isinstance(content, dict):
        return {str(k): _without_none(v) for k, v in content.items() if v is not None}
    return content


SECTIONS: tuple[tuple[str, Callable[[str, int], Printed | None]], ...] = (
    (r"-{4,} arguments -{4,}", megatron),
    (r"\bRunning with (?:args|configs): ?\{", torchtitan),
    (r"\*{4,} Experiment configuration \*{4,}", nemo),
    (f"^{re.escape(BRIDGE)}", bridge),
    (r"\bargs: \w*(?:Sft|Pretrain|Train)Arguments\(", swift),
    (r"\bconfig:\s*\{\s*\"", axolotl),
    (r"\b(?:parameters|args:?) \w*(?:TrainingArguments|SFTConfig)\(", trainer),
    (r"^.{0,200}\bConfig\(general=GeneralArgs\(", nanotron),
    (r"\brunner\.py:\d+:main\] cmd = ", runner),
    (_ENGINE, deepspeed),
)
"""What precedes settings, in the order in which logs are searched, and who reads them."""


def printed_settings(text: str) -> Printed | None:
    """The first settings that a log prints; None where it prints none that are read."""
    for pattern, extract in SECTIONS:
        match = re.search(pattern, text, re.M)
        printed = extract(text, match.start()) if match else None
        if printed is not None:
            return printed
    return None

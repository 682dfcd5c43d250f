"""Scripts that start programs which are not read, recognised by the program.

Source: examples of verl (python3 -m verl.trainer.main_ppo), OpenRLHF (openrlhf.cli), slime
(train.py --actor-num-nodes), MaxText (python3 -m MaxText.train), Levanter, llm-foundry (composer
train/train.py), OLMo-core, GPT-NeoX (deepy.py), metaseq (metaseq-train,
opt-baselines), fairseq (fairseq-train), Colossal-AI, LitGPT, NeMo (nemo llm,
megatron_gpt_pretraining.py), nanotron (run_train.py --config-file).
"""

from __future__ import annotations

import re

from plan3d.simulator.base.errors import InputError

PROGRAMS = (
    ("verl", r"\bverl\.trainer\b"),
    ("OpenRLHF", r"\bopenrlhf\.cli\b"),
    ("slime", r"--actor-num-nodes\b"),
    (
        "MaxText",
        r"\bMaxText(?:\.|/)(?:train\b|\$)|\bmaxtext\.trainers\b|\bMaxText/configs/base\.yml",
    ),
    ("Levanter", r"\blevanter\.main\.\w+|\blevanter/main/\w+\.py\b"),
    ("llm-foundry", r"\bcomposer\b.*\btrain\.py\b"),
    ("OLMo", r"\bolmo_core|\bscripts/train\.py\b.*\bconfigs/"),
    ("GPT-NeoX", r"\bdeepy\.py\b"),
    ("metaseq", r"\bmetaseq-train\b|\bmetaseq[./](?:cli|launcher)[./]|\bopt-baselines\b"),
    ("fairseq", r"\bfairseq-(?:hydra-)?train\b|\bfairseq_cli[./](?:hydra_)?train\b"),
    ("Colossal-AI", r"\bcolossalai run\b"),
    ("LitGPT", r"\blitgpt (?:pretrain|finetune\w*)\b"),
    ("Megatron-Bridge", r"\b\w*setup_experiment\.py\b|--model[-_]recipe[-_]name\b"),
    (
        "NeMo",
        r"\bnemo llm\b|\blauncher_scripts/main\.py\b"
        r"|\bmegatron_\w+_(?:pretraining|finetuning)\.py\b",
    ),
    ("NeMo-Aligner", r"\btrain_gpt_\w+\.py\b.*\bmodel\."),
    ("dolomite-engine", r"\b(?:lm_engine|dolomite_engine)\.\w+"),
    ("ArcticTraining", r"\barctic_training\b.*\.ya?ml\b"),
    ("DeepSpeed-Chat (RLHF)", r"--actor_model_name_or_path\b"),
    ("ms-swift (RLHF)", r"\b(?:swift|megatron) rlhf\b"),
    ("TRL (RL)", r"\btrl (?:dpo|grpo|kto|rloo|ppo)\b"),
)
"""Programs with the patterns of lines, no comments, that start them."""
IDLE = re.compile(
    r"\b(?:swift|megatron) (?:infer|deploy|export|eval|sample|rollout|app|merge-lora)\b"
    r"|\bllamafactory-cli (?:api|chat|eval|export|webchat)\b"
    r"|\baxolotl (?:inference|merge-lora|merge-sharded-fsdp-weights|preprocess|evaluate)\b"
)
"""Commands of tools that train nothing."""
LIBRARIES = {
    **{name: name for name in ("verl", "slime", "trlx", "openrlhf")},
    **{"rl": "reinforcement learning", "colossalai": "Colossal-AI"},
}
"""Python libraries that are not read by what files import, which import those of PYTHON_READERS
too."""
PYTHON = (
    ("DeepSpeed", r"\bdeepspeed\b", "its JSON"),
    ("Megatron-LM", r"\bmegatron\b", ""),
)
"""Python programs: what they import, and files of their settings that are read."""
PYTHON_READERS = (
    ("recipe", r"\bmegatron\.bridge\b|\bnemo(?:_run|\.collections|\.lightning)\b"),
    ("torchtitan", r"\btorchtitan\b"),
    ("trainer-script", r"\btransformers\b|\btrl\b"),
)
"""Readers by what files import that are read."""
NANOTRON = re.compile(r"\brun_train\.py\b.*--config[-_]file[= ](\S+)")


def starts_nanotron(text: str) -> bool:
    """Whether a script starts nanotron with a file that has the run."""
    return any(map(NANOTRON.search, _lines(text)))


def _lines(text: str) -> list[str]:
    """The lines of a script without comments, those that go on joined."""
    joined = re.sub(r"\\\r?\n", " ", text)
    return [line for line in joined.splitlines() if not line.lstrip().startswith("#")]


def check_program(text: str, file: str) -> None:
    """Raise InputError for a script that starts a program which is not read, by its name, and for
    one that only uses a model."""
    lines = _lines(text)
    for line in lines:
        for title, pattern in PROGRAMS:
            if re.search(pattern, line):
                raise InputError(
                    f"{file}: starts {title}, which is not read: give the model, the batch and "
                    "the plan to plan3d estimate"
                )
    idle = IDLE.search("\n".join(lines))
    if idle:
        raise InputError(f"{file}: {idle[0]} trains no model: give the script of a training run")


def check_imports(text: str, file: str) -> str:
    """The lines of a Python file that import. Raises InputError for a library that is not read."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    imports = "\n".join(line for line in lines if re.match(r"\s*(?:from|import)\s", line))
    own = LIBRARIES.keys() & set(re.findall(r"\w+", imports))
    if own:
        problem = f"is Python of {LIBRARIES[min(own)]}, which is not read: give the model, the"
        raise InputError(f"{file}: {problem} batch and the plan to plan3d estimate")
    return imports


def python_reader(text: str, file: str) -> str:
    """The reader of a Python file, by what it imports. Raises InputError for one that none takes,
    with the files that are read in its place."""
    imports = check_imports(text, file)
    for name, pattern in PYTHON_READERS:
        if re.search(pattern, imports):
            return name
    for title, pattern, settings in PYTHON:
        if re.search(pattern, imports):
            others = f"{settings}, " if settings else ""
            raise InputError(
                f"{file}: is Python of {title}, which is not run: give {others}the command that "
                "starts it or the log of its run"
            )
    raise InputError(f"{file}: is Python, which is not run: give the command or the log of the run")

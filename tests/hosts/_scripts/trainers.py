"""A tiny language model and its ``transformers.Trainer``, in this process and on ranks."""

import logging
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from sla_accelerate import SLATrainerCallback
from slav1.contract import Contract

warnings.filterwarnings("ignore")
logging.getLogger("accelerate").setLevel(logging.ERROR)
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

NUM_WORDS, NUM_ITEMS, LENGTH = 64, 64, 8
BATCH = 4
NUM_BATCHES = NUM_ITEMS // BATCH
"""Batches of an epoch on one rank."""


class Words(Dataset[dict[str, Tensor]]):
    """Random words that are to be learnt by heart, each time with a little noise."""

    def __init__(self, num: int = NUM_ITEMS, *, is_noisy: bool = True) -> None:
        self.is_noisy = is_noisy
        generator = torch.Generator().manual_seed(0)
        self.words = torch.randint(0, NUM_WORDS, (num, LENGTH), generator=generator)

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        words = self.words[index].clone()
        # As a collator that masks words does: what is drawn has to be drawn again.
        if self.is_noisy:
            words[torch.randint(0, LENGTH, ()).item()] = 0
        return {"input_ids": words, "labels": words, "index": index}


class Seeing(Trainer):
    """Writes down which items each step was made of."""

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        indices = inputs.pop("index").tolist()
        if model.training:
            vars(self).setdefault("seen", []).append((self.state.global_step, indices))
        return super().compute_loss(model, inputs, *args, **kwargs)


def model() -> GPT2LMHeadModel:
    """Two layers with dropout, the same in every process."""
    torch.manual_seed(1)
    shape = {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": LENGTH}
    words = {"vocab_size": NUM_WORDS, "bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**shape, **words, loss_type="ForCausalLMLoss"))


def lora() -> Any:
    """The same model with an adapter, of which alone something is learnt."""
    from peft import LoraConfig, get_peft_model

    adapter = LoraConfig(r=4, target_modules=["c_attn"], lora_dropout=0.1, fan_in_fan_out=True)
    return get_peft_model(model(), adapter)


def settings(folder: Path, **more: Any) -> TrainingArguments:
    """Arguments of a trainer that is quiet and logs each step."""
    usual: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": BATCH,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_steps": 4,
        "max_steps": 20,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "seed": 3,
    }
    return TrainingArguments(**usual | more)


class Counts(TrainerCallback):
    """Which steps a training made, and how often it was told to begin."""

    def __init__(self) -> None:
        self.num_begins = 0
        self.steps: list[int] = []
        self.events: list[str] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.num_begins += 1

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.steps.append(state.global_step)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.events.append(f"evaluate {state.global_step}")

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.events.append(f"save {state.global_step}")


def trainer(
    folder: Path,
    contract: Contract | None,
    *callbacks: TrainerCallback,
    kind: type[Trainer] = Seeing,
    run_dir: str | None = None,
    skip_bad_batches: bool = True,
    **more: Any,
) -> Trainer:
    """A trainer in a folder, under contract if there is one; its parts are on it as ``counts``
    and ``sla``."""
    counts = Counts()
    sla = SLATrainerCallback(contract, run_dir, skip_bad_batches=skip_bad_batches)
    parts = {name: more.pop(name) for name in ("train_dataset", "eval_dataset") if name in more}
    made = kind(
        model=more.pop("model", None) or model(),
        args=settings(folder / "out", **more),
        train_dataset=parts.get("train_dataset", Words()),
        eval_dataset=parts.get("eval_dataset", Words(BATCH)),
        callbacks=[counts, *callbacks, *([] if contract is None else [sla])],
    )
    made.counts, made.sla = counts, sla
    return made


def sft(folder: Path, *callbacks: TrainerCallback) -> Trainer:
    """A trainer of TRL, with a tokenizer that knows its few words."""
    from datasets import Dataset as Rows
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    special = ["[PAD]", "[EOS]", "[UNK]"]
    words = [f"w{number}" for number in range(NUM_WORDS - len(special))]
    known = {word: number for number, word in enumerate([*special, *words])}
    tokens = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokens, pad_token="[PAD]", eos_token="[EOS]", unk_token="[UNK]"
    )
    texts = [" ".join(words[number % 61] for number in row.tolist()) for row in Words().words]
    more = {"max_length": LENGTH, "bf16": False, "activation_checkpointing": False}
    usual = settings(folder).to_dict()
    kept = ("output_dir", "per_device_train_batch_size", "learning_rate", "logging_steps")
    kept = (*kept, "save_steps", "max_steps", "use_cpu", "report_to", "disable_tqdm", "seed")
    return SFTTrainer(
        model(),
        args=SFTConfig(**{name: usual[name] for name in kept}, **more),
        train_dataset=Rows.from_list([{"text": text} for text in texts]),
        processing_class=tokenizer,
        callbacks=list(callbacks),
    )


def losses(host: Trainer) -> list[tuple[int, float]]:
    """What was logged of each step."""
    return [(one["step"], one["loss"]) for one in host.state.log_history if "loss" in one]

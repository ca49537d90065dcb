"""The training job of ``sla demo --backend accelerate``: an ordinary loop with one line changed.

Run by ``sla demo`` as ``python -m sla_accelerate.demo``, by ``torchrun`` where several processes
train; runs by itself as well. It knows nothing of faults: those come from outside, through
``SLA_INJECT``.
"""

from collections.abc import Sequence

import torch
from accelerate.utils import (  # type: ignore[import-untyped]
    DataLoaderConfiguration,
    ProjectConfiguration,
    set_seed,
)
from torch.utils.data import DataLoader

from sla_accelerate.accelerator import SLAAccelerator
from slav1.demo import (
    ALPHABET,
    BATCH_SIZE,
    LEARNING_RATE,
    LENGTH,
    SAVE_EVERY,
    SEED,
    CharacterModel,
    JobOptions,
    Windows,
    contract_for,
    cross_entropy,
    options_of,
    source_text,
)

_NO_END = 1 << 30


def train(options: JobOptions) -> None:
    """Trains on this machine's processor until the last step, or the contract, ends it.

    Args:
        options: What is asked for; another process starts those that train.
    """
    accelerator = SLAAccelerator(
        contract=contract_for(saves_by_itself=False),
        run_dir=options.run_dir,
        on_stop="flag",
        cpu=True,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
        project_config=ProjectConfiguration(automatic_checkpoint_naming=True, total_limit=3),
    )
    set_seed(SEED)
    model = CharacterModel(num_characters=len(ALPHABET), length=LENGTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    data = Windows(source_text(), length=LENGTH)
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, DataLoader(data, batch_size=BATCH_SIZE, shuffle=True, drop_last=True)
    )
    accelerator.project_configuration.set_directories(str(accelerator.sla_run_folder))
    accelerator.load_state("last_good")
    _loop(accelerator, model, optimizer, loader, num_steps=options.num_steps)
    accelerator.end_training()


def _loop(
    accelerator: SLAAccelerator,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[tuple[torch.Tensor, torch.Tensor]],
    *,
    num_steps: int,
) -> None:
    for _ in accelerator.sla_epochs(_NO_END):
        for text, following in loader:
            loss = cross_entropy(model(text), following)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if accelerator.sla_should_stop:
                return
            num_made = accelerator.sla_last_step + 1
            if num_made % SAVE_EVERY == 0:
                accelerator.save_state()
            if num_made >= num_steps:
                return


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line and trains.

    Args:
        arguments: Words of the command line; those of this process if None.
    """
    train(options_of("python -m sla_accelerate.demo", arguments))


if __name__ == "__main__":
    main()

"""A ``transformers.Trainer`` under contract, on real ranks; options come as JSON."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from toys import contract, tell
from trainers import lora, losses, trainer

RANK = int(os.environ["RANK"])


def main() -> None:
    """Trains, and tells what came of it."""
    options: dict[str, Any] = json.loads(sys.argv[1])
    clauses = options.pop("clauses", {})
    folder = Path(options.pop("folder"))
    resume = options.pop("resume", None)
    skip = options.pop("skip_bad_batches", True)
    if options.pop("is_lora", False):
        options["model"] = lora()
    made = trainer(folder, contract(**clauses), skip_bad_batches=skip, **options)
    made.train(resume_from_checkpoint=resume)
    weights = torch.cat([one.detach().flatten() for one in made.model.parameters()])
    tell(
        "ended",
        steps=made.counts.steps,
        events=made.counts.events,
        stopped_at=made.sla.stopped_at,
        losses=losses(made),
        weights=weights.double().sum().item(),
        run_folder=str(made.sla.run_folder),
    )


main()

"""An ordinary training; faults come from ``SLA_INJECT``.

Arguments: number of steps, clauses of the contract as JSON.
"""

import json
import os
import sys

import toys


def main() -> None:
    num_steps, num_ranks = int(sys.argv[1]), int(os.environ["WORLD_SIZE"])
    watch = toys.SLACallback(toys.contract(**json.loads(sys.argv[2])))
    trainer = toys.trainer(
        watch,
        devices=num_ranks,
        strategy="ddp" if num_ranks > 1 else "auto",
        max_steps=num_steps,
    )
    trainer.fit(toys.Toy(), toys.batches(num_steps, num_ranks=num_ranks))
    toys.tell("fit", global_step=trainer.global_step, stopped_at=watch.stopped_at)


if __name__ == "__main__":
    main()

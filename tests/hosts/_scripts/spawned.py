"""Lightning starts the ranks from this process: the callback travels to them by pickle.

Arguments: strategy, number of ranks.
"""

import os
import sys

import toys


def main() -> None:
    strategy, num_ranks = sys.argv[1], int(sys.argv[2])
    # Left by whoever started this script, which is no rank.
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)
    watch = toys.SLACallback(toys.contract(non_finite={"action": "stop"}))
    trainer = toys.trainer(watch, devices=num_ranks, strategy=strategy, max_steps=200)
    trainer.fit(toys.Toy(), toys.batches(200, num_ranks=num_ranks))
    toys.tell("fit", status=trainer.state.status.value)


if __name__ == "__main__":
    main()

"""Three steps on two ranks, each with the limit of a hang that it is given."""

import os
import sys

import toys


def main() -> None:
    """Trains if it may."""
    limit_s = float(sys.argv[1:][int(os.environ["RANK"])])
    callback = toys.SLACallback(toys.contract(limit_s=limit_s))
    trainer = toys.trainer(callback, devices=2, strategy="ddp", max_steps=3)
    trainer.fit(toys.Toy(0.0), toys.batches(3, num_ranks=2))
    toys.tell("trained")


if __name__ == "__main__":
    main()

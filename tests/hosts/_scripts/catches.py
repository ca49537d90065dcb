"""A script that catches the exception of its rank and does not end."""

import time

import toys

from slav1.testing import InjectedFaultError


def main() -> None:
    contract = toys.contract(limit_s=1.5, monitor={"grace_s": 0.5})
    trainer = toys.trainer(toys.SLACallback(contract), devices=2, strategy="ddp", max_steps=100)
    try:
        trainer.fit(toys.Toy(), toys.batches(100, num_ranks=2))
    except InjectedFaultError:
        toys.tell("caught")
        time.sleep(6)


if __name__ == "__main__":
    main()

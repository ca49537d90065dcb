"""What is done to loaders: only to those of torch, and never more than they bear."""

from typing import Any

from torch.utils.data import DataLoader

from slav1.seeds.worker_watch import MAX_EPOCHS, WorkerWatch


class ForeignLoader:
    """A loader that starts its workers in a way of its own, as those of other libraries do."""

    __slots__ = ()
    num_workers = 4


class ComparedLoader(DataLoader[int]):
    """A loader that is compared by what it holds, and so has no hash."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ComparedLoader)

    __hash__ = None  # type: ignore[assignment]


def test_a_loader_that_is_none_of_torchs_is_left_alone() -> None:
    """
    A loader of another library is neither changed nor asked for what only torch's have.
    """
    watch = WorkerWatch()
    watch.watch([ForeignLoader(), [1]], 0, seed=1)

    assert watch.news() == []
    watch.close()


def test_a_loader_without_a_hash_gets_its_own_start_back() -> None:
    """
    A loader that can't be a member of a set is watched and given back what was its own.
    """

    def own(worker: int) -> None:
        del worker

    loaders = [ComparedLoader([1, 2], num_workers=1, worker_init_fn=own) for _ in range(2)]
    watch = WorkerWatch()
    watch.watch(loaders, 0, seed=None)
    watch.watch(loaders, 1, seed=None)
    during = [loader.worker_init_fn for loader in loaders]
    watch.close()

    assert own not in during
    assert [loader.worker_init_fn for loader in loaders] == [own, own]


def test_workers_tell_of_the_first_passes_only() -> None:
    """
    After some passes workers write nothing more, so that a long training keeps no memory for it.
    """
    loader: Any = DataLoader([1, 2], num_workers=1)
    watch = WorkerWatch()
    told = []
    for epoch in range(MAX_EPOCHS + 2):
        watch.watch([loader], epoch, seed=None)
        loader.worker_init_fn(0)
        told.append(len(watch.news()))
    watch.close()

    assert told == [1] * MAX_EPOCHS + [0, 0]

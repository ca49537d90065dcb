"""Samplers that share data out: found wherever a loader has them, and asked for their epoch."""

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from slav1.contract import SeedSettings
from slav1.seeds import Seeds, repeats_its_order, sampler_seeds
from slav1.testing import ThreadPeers, run_ranks

DATA = [torch.tensor(float(item)) for item in range(8)]


def sampler(*, seed=5, shuffle=True):
    return DistributedSampler(DATA, num_replicas=2, rank=0, seed=seed, shuffle=shuffle)


def test_samplers_are_found_in_loaders_and_in_batch_samplers():
    """
    The seeds of distributed samplers are read, those of a batch sampler too; a loader with
    another sampler, and what is no loader, has none.
    """
    plain = DataLoader(DATA, sampler=sampler())
    inside = DataLoader(DATA, batch_sampler=BatchSampler(sampler(seed=6), 2, drop_last=False))

    assert list(sampler_seeds([plain, inside, DataLoader(DATA, shuffle=True), [1]])) == [5, 6]


def test_a_sampler_that_was_not_told_of_the_epoch_is_named_once(tmp_path):
    """
    A shuffling sampler that stands at another epoch repeats an order and is told of once; one
    that was told, or does not shuffle, is fine.
    """
    stuck, told, straight = sampler(), sampler(), sampler(shuffle=False)
    told.set_epoch(1)
    loaders = [DataLoader(DATA, sampler=each) for each in (stuck, told, straight)]

    def work(peers: ThreadPeers):
        seeds = Seeds(SeedSettings(), peers, tmp_path, {})
        for epoch in (1, 2):
            seeds.check_samplers(loaders[:1], epoch=epoch, step=8)
        return [message for _, message, _ in peers.records]

    assert [repeats_its_order([loader], 1) for loader in loaders] == [True, False, False]
    (said,) = run_ranks(work, 1)[0]
    assert "not told of epoch 1" in said and "set_epoch()" in said

"""What is said of a batch and parameters when a loss is not finite."""

import math

import pytest
import torch

from slav1.recorder import layout
from slav1.torch_signals import non_finite_flags

FINE = [torch.nn.Parameter(torch.ones(2))]
BAD = torch.tensor([[1.0, 0.0], [0.0, math.nan]])


KINDS = {
    "dense": lambda: BAD,
    "coo": BAD.to_sparse,
    "csr": BAD.to_sparse_csr,
    "complex": lambda: BAD.to(torch.complex64),
    "half": BAD.bfloat16,
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_is_found_in_tensors_of_all_kinds(kind):
    """
    NaN in a batch, as of a graph with a sparse matrix of neighbours, and in parameters is told
    from a loss that went bad by itself.
    """
    bad = KINDS[kind]()
    of_input = layout.LOSS_NON_FINITE | layout.INPUT_NON_FINITE

    assert non_finite_flags(bad, FINE) == of_input
    assert non_finite_flags({"x": [torch.ones(2), (bad,)]}, FINE) == of_input
    assert non_finite_flags(None, [bad]) == layout.LOSS_NON_FINITE | layout.PARAMETERS_NON_FINITE


def test_what_can_not_be_looked_at_ends_no_training():
    """
    Tensors of which torch can't say whether they are finite count as if they were.
    """
    unknown = [torch.ones(3, device="meta"), torch.ones(3).to(torch.float8_e4m3fn)]

    assert non_finite_flags(unknown, FINE) == layout.LOSS_NON_FINITE

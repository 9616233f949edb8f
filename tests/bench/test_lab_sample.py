"""The bias that `make run` shows."""

import pytest

from bench.lab.sample import flipping


@pytest.mark.parametrize("gaps", [(2.0, 1.0), (-1.0, -3.0), (1.5, -2.0), (-0.25, 4.0)])
def test_the_bias_of_the_sample_flips_exactly_one_decision(gaps: tuple[float, float]) -> None:
    bias = flipping(*gaps)
    assert sum((gap > 0) != (gap + bias > 0) for gap in gaps) == 1

"""The packaged encoder: known vectors, whatever stands beside a text or how many cores are used."""

import numpy as np
import pytest
import torch

from compevo_core.lm.encoder import PACKAGED_ENCODER, load_encoder, use_all_cores

FIRST_NUMBERS = {
    "Heatwave pushes power grid of South Australia to its limit": (
        *(-0.023391, 0.003809, 0.003747, 0.058519, 0.045095, 0.028765),
    ),
    "Gold": (-0.056633, 0.075484, -0.025937, 0.063067, -0.01841, -0.017481),
    "Bitcoin falls below $60,000 as traders flee risk \N{EN DASH} again": (
        *(0.03393, 0.033577, -0.025343, 0.073864, -0.010284, 0.023992),
    ),
    "Heat: power, and WATER! Hospitals of three cities ask for help as the grid of the eastern "
    "states fails for a second day": (
        *(0.0083, 0.059808, 0.090791, 0.127958, 0.017707, -0.041091),
    ),
}
"""Of all-MiniLM-L6-v2 in single precision, on a processor."""

TITLES = list(FIRST_NUMBERS)


@pytest.fixture(scope="module")
def encoder():
    return load_encoder(PACKAGED_ENCODER)


@pytest.fixture(scope="module")
def vectors(encoder):
    return encoder.encode(TITLES)


def test_titles_have_the_vectors_that_they_always_had(vectors):
    assert vectors.shape == (4, 384) and vectors.dtype == np.float32
    np.testing.assert_allclose(vectors[:, :6], list(FIRST_NUMBERS.values()), rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_a_vector_depends_on_nothing_but_its_text(encoder, vectors):
    alone = np.concatenate([encoder.encode([title]) for title in TITLES])
    among_others = encoder.encode([*(f"{n} " * (n % 9) for n in range(70)), *TITLES[::-1]])
    np.testing.assert_allclose(alone, vectors, rtol=0, atol=1e-6)
    np.testing.assert_allclose(among_others[:-5:-1], vectors, rtol=0, atol=1e-6)


def test_where_no_process_is_bound_to_cores_all_of_the_machine_are_used(monkeypatch):
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: 5)
    before = torch.get_num_threads()
    with use_all_cores():
        assert torch.get_num_threads() == 5
    assert torch.get_num_threads() == before


def test_all_cores_give_the_vectors_of_one_and_are_given_back(encoder, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2})
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        of_one = encoder.encode(TITLES)
        with use_all_cores():
            assert torch.get_num_threads() == 3
            of_all = encoder.encode(TITLES)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    np.testing.assert_allclose(of_all, of_one, rtol=0, atol=1e-6)

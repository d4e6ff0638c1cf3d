"""Vectors of texts: found by text, added once, whole after any interruption."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from compevo_core.errors import DataError
from compevo_pipeline.storage.embedding_store import KEYS_FILE, VECTORS_FILE, EmbeddingStore
from tests.support.store_workers import make_vectors

TITLES = [f"Title {number}" for number in range(20)]


@pytest.fixture
def store(tmp_path):
    return EmbeddingStore(tmp_path, "m")


def add(store, titles):
    return store.append(titles, make_vectors(titles))


def assert_holds(store, titles):
    assert store.find_missing(titles) == []
    np.testing.assert_array_equal(store.read(titles), make_vectors(titles))


def test_vectors_are_found_by_their_text(store):
    assert store.find_missing(["b", "a", "b"]) == ["b", "a"]
    add(store, TITLES[:12])
    add(store, TITLES[12:])
    asked = [TITLES[15], TITLES[2], TITLES[15]]
    np.testing.assert_array_equal(store.read(asked), make_vectors(asked))
    assert store.read([]).shape == (0, 4)

    assert store.find_missing(["b", TITLES[3], "a", "b"]) == ["b", "a"]
    with pytest.raises(DataError, match="2 of 3"):
        store.read(["b", TITLES[3], "a"])


def test_the_first_vector_of_a_text_stays(store):
    assert add(store, TITLES[:2]) == 2
    assert store.append(TITLES[1:3], np.ones((2, 4), np.float32)) == 1
    assert len(store) == 3
    assert_holds(store, TITLES[:2])


def test_what_a_killed_append_left_behind_is_overwritten(store):
    add(store, TITLES[:5])
    for name, torn in ((VECTORS_FILE, b"x" * 23), (KEYS_FILE, b"y" * 5)):
        with (store.folder / name).open("ab") as stream:
            stream.write(torn)
    assert_holds(store, TITLES[:5])
    assert add(store, TITLES) == 15
    assert_holds(store, TITLES)

    assert (store.folder / VECTORS_FILE).stat().st_size == 20 * 4 * 4
    assert (store.folder / KEYS_FILE).stat().st_size == 20 * 8


@pytest.mark.parametrize("name", [VECTORS_FILE, KEYS_FILE])
def test_lost_rows_can_be_added_again(store, name):
    add(store, TITLES)
    path = store.folder / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 + 1])
    assert store.find_missing(TITLES) == TITLES[10:]

    # Others than before in their place: keys of the lost rows would lead astray.
    others = [f"Other {number}" for number in range(10)]
    add(store, others)
    assert_holds(store, TITLES[:10] + others)
    assert store.find_missing(TITLES) == TITLES[10:]


@pytest.mark.parametrize(
    ("titles", "matrix", "match"),
    [
        (TITLES[:2], np.ones((3, 4)), "for 2 texts"),
        (TITLES[:1], np.array([[1, np.nan, 0, 0]]), "NaN"),
        (TITLES[:1], np.ones((1, 3)), "not 3"),
    ],
)
def test_misfit_vectors_are_refused(store, titles, matrix, match):
    add(store, ["first"])
    with pytest.raises(DataError, match=match):
        store.append(titles, matrix)
    assert len(store) == 1


def test_a_damaged_manifest_says_what_to_do(store):
    add(store, TITLES)
    (store.folder / "manifest.json").write_text("[]")
    with pytest.raises(DataError, match="remove"):
        store.read(TITLES)


def test_parallel_writers_keep_every_text_once(store, tmp_path):
    parts = [TITLES[first : first + 8] for first in range(0, 16, 2)]
    with ThreadPoolExecutor(4) as pool:
        for part in parts:
            pool.submit(add, EmbeddingStore(tmp_path, "m"), part)
    assert len(store) == len({title for part in parts for title in part})
    assert_holds(store, TITLES)

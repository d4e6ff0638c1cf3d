"""Errors of disk and file formats say what happened, where, and what to do."""

import errno
import os
import resource

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import load_file, save_file

from compevo_core.errors import StorageError
from compevo_core.runtime.files import write_atomically
from compevo_core.runtime.storage_errors import translate_storage_errors


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.ENOSPC, "free space"), (errno.EMFILE, "ulimit -n"), (errno.EXDEV, "correct the cause")],
)
def test_an_error_of_the_disk_says_what_where_and_what_to_do(number, remedy):
    with pytest.raises(StorageError) as caught, translate_storage_errors("writing windows"):
        raise OSError(number, os.strerror(number), "/home/x/windows.parquet")
    text = str(caught.value)
    assert text.startswith("writing windows: ")
    assert os.strerror(number) in text
    assert "/home/x/windows.parquet" in text
    assert remedy in text


def test_an_error_that_hides_its_number_in_its_text_has_the_same_remedy():
    for text in ("I/O error: x (os error 28)", "could not write: No space left on device"):
        with pytest.raises(StorageError, match="free space"), translate_storage_errors():
            raise OSError(text)


def test_a_torn_file_of_tensors_is_an_error_of_storage(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"a": np.zeros(100)}, path)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(StorageError), translate_storage_errors():
        load_file(path)


def test_a_torn_parquet_file_is_an_error_of_storage_and_a_wrong_expression_is_not(tmp_path):
    path = tmp_path / "x.parquet"
    pl.DataFrame({"a": [1, 2]}).write_parquet(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(StorageError, match="torn"), translate_storage_errors():
        pl.read_parquet(path)
    with pytest.raises(pl.exceptions.PolarsError), translate_storage_errors():
        pl.select(pl.lit("x").cast(pl.Int64))


def test_errors_of_a_network_stay_as_they_are():
    for kind in (ConnectionResetError, TimeoutError):
        with pytest.raises(kind), translate_storage_errors():
            raise kind


def test_a_file_that_grows_too_large_leaves_the_old_one_and_says_why(tmp_path):
    path = tmp_path / "frame.parquet"
    write_atomically(path, pl.DataFrame({"a": [1]}).write_parquet)
    noise = pl.DataFrame({"a": np.random.default_rng(0).normal(size=100_000)})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(StorageError, match="ulimit -f"), translate_storage_errors("frames"):
            write_atomically(path, noise.write_parquet)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert pl.read_parquet(path)["a"].to_list() == [1]
    assert [file.name for file in tmp_path.iterdir()] == ["frame.parquet"]

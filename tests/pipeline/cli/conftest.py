"""What tests of the command line share: a root logger that stays as it was."""

import logging

import pytest


@pytest.fixture(autouse=True)
def quiet_log():
    """The command line sets the root logger up; other tests see it as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level

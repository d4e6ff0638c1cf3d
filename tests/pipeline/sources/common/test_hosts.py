"""One pace a host, whichever process asks."""

import pytest

from compevo_pipeline.errors import MAX_RETRY_AFTER_S
from compevo_pipeline.sources.common.hosts import Pacer


class Watch:
    """A clock whose sleep passes no real time."""

    def __init__(self):
        self.now = 100.0
        self.slept = []

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds

    def pacer(self, folder):
        return Pacer(folder=folder, now_s=lambda: self.now, sleep=self.sleep)


def test_two_processes_share_the_pace_of_a_host_and_other_hosts_do_not_wait(tmp_path):
    watch = Watch()
    first, second = watch.pacer(tmp_path), watch.pacer(tmp_path)
    first.wait_for_turn("a", 5.0)
    second.wait_for_turn("b", 5.0)
    assert watch.slept == []
    watch.now += 2.0
    second.wait_for_turn("a", 5.0)
    assert watch.slept == [3.0]


def test_a_turn_is_taken_before_it_comes(tmp_path):
    asleep = Watch()
    asleep.sleep = asleep.slept.append  # three processes that sleep at the same time
    for _ in range(3):
        asleep.pacer(tmp_path).wait_for_turn("a", 5.0)
    assert asleep.slept == [5.0, 10.0]


@pytest.mark.parametrize("back_s", [600.0, 3600.0, 2 * MAX_RETRY_AFTER_S])
def test_a_clock_that_was_set_back_stops_no_host(tmp_path, back_s):
    watch = Watch()
    watch.pacer(tmp_path).wait_for_turn("a", 1.0)
    watch.now -= back_s
    watch.pacer(tmp_path).wait_for_turn("a", 1.0)
    assert watch.slept == []


def test_the_clock_of_another_machine_may_be_a_little_ahead(tmp_path):
    watch = Watch()
    watch.pacer(tmp_path).wait_for_turn("a", 1.0)
    watch.now -= 2.0
    watch.pacer(tmp_path).wait_for_turn("a", 1.0)
    assert watch.slept == [3.0]


def test_a_turn_that_was_cut_while_written_stops_no_host(tmp_path):
    watch = Watch()
    watch.pacer(tmp_path).wait_for_turn("a", 1.0)
    (tmp_path / "a.turn").write_text("10")
    (tmp_path / "b.turn").write_text("")
    for host in "ab":
        watch.pacer(tmp_path).wait_for_turn(host, 1.0)
    assert watch.slept == []

"""The verdict cache: one question per distinct pair, a file that is never torn."""

import json
from pathlib import Path

import pytest

from compevo_core.errors import DataError, SourceTransient
from compevo_core.lud import verdicts
from compevo_core.lud.judge import ANSWERS, JudgeReplyError, JudgeVerdict
from compevo_core.lud.verdicts import VerdictCache, hash_question, judge_pairs


class CountingJudge:
    """A judge by text length that counts its questions and may fail at one of them."""

    def __init__(
        self, name: str = "counting", fail_at: int = -1, error: Exception | None = None
    ) -> None:
        self.name, self.asked, self._fail_at, self._error = name, 0, fail_at, error

    def judge(self, previous: str, current: str) -> JudgeVerdict:
        if self.asked == self._fail_at:
            raise self._error
        self.asked += 1
        return ANSWERS[len(current) % 4]


PAIRS = [("a", "bb"), ("a", "ccc"), ("a", "bb")]


def test_a_pair_is_judged_once_in_a_call_and_never_again_with_a_cache(tmp_path: Path) -> None:
    judge, path = CountingJudge(), tmp_path / "deep" / "verdicts.jsonl"
    first = judge_pairs(judge, PAIRS, cache=VerdictCache(path))
    assert first == [ANSWERS[2], ANSWERS[3], ANSWERS[2]]
    assert judge.asked == 2
    assert judge_pairs(judge, PAIRS, cache=VerdictCache(path)) == first
    assert judge.asked == 2
    without_cache = CountingJudge()
    assert judge_pairs(without_cache, PAIRS) == first
    assert without_cache.asked == 2


def test_lines_are_json_and_name_their_judge(tmp_path: Path) -> None:
    path = tmp_path / "v.jsonl"
    judge_pairs(CountingJudge("j-1"), PAIRS, cache=VerdictCache(path))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [set(r) for r in rows] == [
        {"key", "judge", "strategy_shift", "evidence_recombination"}
    ] * 2
    assert {r["judge"] for r in rows} == {"j-1"}


def test_another_judge_another_text_or_another_prompt_has_another_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = {
        hash_question("j", "a", "b"),
        hash_question("k", "a", "b"),
        hash_question("j", "b", "a"),
        hash_question("j", "a", "c"),
    }
    monkeypatch.setattr("compevo_core.lud.judge.SYSTEM_PROMPT", "Be kind.")
    keys.add(hash_question("j", "a", "b"))
    assert len(keys) == 5


def test_what_was_judged_before_a_failure_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "v.jsonl"
    with pytest.raises(SourceTransient):
        judge_pairs(
            CountingJudge(fail_at=1, error=SourceTransient("status 503")),
            PAIRS,
            cache=VerdictCache(path),
        )
    assert len(VerdictCache(path)) == 1


def test_a_reply_that_is_no_verdict_is_none_and_is_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "v.jsonl"
    torn = CountingJudge(fail_at=1, error=JudgeReplyError("prose"))
    assert judge_pairs(torn, PAIRS, cache=VerdictCache(path)) == [ANSWERS[2], None, ANSWERS[2]]
    whole = CountingJudge()
    assert judge_pairs(whole, PAIRS, cache=VerdictCache(path)) == [
        ANSWERS[2],
        ANSWERS[3],
        ANSWERS[2],
    ]
    assert whole.asked == 1


def test_a_crash_while_saving_leaves_the_old_file_and_no_litter(
    tmp_path: Path, monkeypatch
) -> None:
    path = tmp_path / "v.jsonl"
    judge_pairs(CountingJudge(), PAIRS, cache=VerdictCache(path))
    before = path.read_bytes()

    def die(_: int) -> None:
        raise OSError("disk is gone")

    monkeypatch.setattr("compevo_core.data.files.os.fsync", die)
    with pytest.raises(OSError, match="gone"):
        judge_pairs(CountingJudge(), [("a", "dddd")], cache=VerdictCache(path))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_two_caches_on_one_file_keep_each_others_verdicts(tmp_path: Path) -> None:
    path = tmp_path / "v.jsonl"
    one, two = VerdictCache(path), VerdictCache(path)
    judge_pairs(CountingJudge("one"), PAIRS, cache=one)
    judge_pairs(CountingJudge("two"), PAIRS, cache=two)
    assert len(VerdictCache(path)) == 4


def test_long_work_reaches_the_disk_on_the_way(tmp_path: Path) -> None:
    path = tmp_path / "v.jsonl"
    cache = VerdictCache(path)
    for k in range(verdicts.SAVE_EVERY):
        cache.put(str(k), ANSWERS[0], judge="j")
    assert len(VerdictCache(path)) == verdicts.SAVE_EVERY


@pytest.mark.parametrize(
    "line",
    ["{", "[]", '{"key": "x"}', '{"key": "x", "strategy_shift": 3, "evidence_recombination": 0}'],
)
def test_a_damaged_line_is_refused_with_file_and_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "v.jsonl"
    judge_pairs(CountingJudge(), PAIRS, cache=VerdictCache(path))
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(DataError, match=r"v\.jsonl, line 3"):
        VerdictCache(path)

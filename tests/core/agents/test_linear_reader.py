"""The ridge that reads news: of one agent, with no window that reads its own truth; of all."""

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
import torch

from compevo_core.agents.decoders import ForecastExample, RetrievedArticle
from compevo_core.agents.joint_reader import (
    JointReader,
    LogicScorer,
    fit_jointly,
    take_turns,
)
from compevo_core.agents.linear_reader import PARTS, FittedReader, SealedReadings, read_words
from compevo_core.agents.logics import LogicRecords
from compevo_core.agents.observation import list_best_unread
from compevo_core.agents.retrieval import NewsRetriever
from compevo_core.agents.selection import FitnessSelection
from compevo_core.config.run import RunConfig
from compevo_core.config.sections import MOST_ARTICLES, MemberConfig, SelectionConfig
from compevo_core.data.news_pool import NewsPool
from compevo_core.errors import DataError
from compevo_core.lm.encoder import HashingEncoder
from compevo_core.paper.planted_news import HEADLINES, SIGNS, make_pool, measure_residuals
from tests.support.planted import base_windows, planted_world, sentence_encoder

LOGIC = "Track news about power outages and rooftop solar in any region, at night, as a sign of x."
NOISE = "Track news about interest rates in any region, at night, as a sign of x."
SIZE = 384  # of an embedding
START = datetime(2020, 1, 1, tzinfo=UTC)


def _scale_effects(windows):
    """Return the planted effects in standard deviations: -3, 0 or 3."""
    size_of = measure_residuals(base_windows().split("train"))
    sizes = np.array([size_of[view.entity] for view in windows.views()])
    return planted_world().effects_of(windows) / sizes


def _read(examples, members=1, top_k=1, news=None):
    """A reader of agents with one base, members given by their number or one by one."""
    if isinstance(members, int):
        members = [MemberConfig()] * members
    retriever = NewsRetriever(news or planted_world().news, sentence_encoder(), top_k)
    return FittedReader(examples, retriever, members, np.ones((len(members), 1)))


@pytest.fixture(scope="module")
def examples():
    """Examples whose base knows all but the planted effect, and noise of one deviation."""
    train = planted_world().split("train")
    noise_NH = np.random.default_rng(0).normal(size=(len(train), 48))
    pairs = zip(train.views(), _scale_effects(train)[:, None] + noise_NH, strict=True)
    return [ForecastExample(view, np.zeros((1, 48)), truth_H) for view, truth_H in pairs]


def _slope(values, effects):
    return float(np.polyfit(effects, np.mean(values, axis=1), 1)[0])


def test_held_out_readings_need_the_right_logic(examples):
    reader = _read(examples)
    effects = _scale_effects(planted_world().split("train"))
    ids = [e.view.window_id for e in examples]
    fits = [reader.find(0, logic) for logic in (LOGIC, NOISE)]
    right, wrong = ([fit.held_out[name] for name in ids] for fit in fits)
    assert _slope(right, effects) > 0.4
    assert abs(_slope(wrong, effects)) < 0.2

    # An article like all others reads as zero.
    fit = reader.find(0, LOGIC)
    usual = RetrievedArticle("id", "1 Jan", "title", fit.mean_X[:SIZE])
    assert np.abs(fit.predict(examples[0].view, [usual])).max() < 1e-9
    assert np.abs(fit.mean_X[:SIZE] @ fit.weights_ZH[:SIZE]).max() > 1e-3


def test_where_news_begins_late_every_block_has_some(examples):
    views = [replace(e.view, candidate_ids=()) for e in examples[:180]]
    late = [replace(e, view=view) for e, view in zip(examples, views, strict=False)]
    blocks = _read([*late, *examples[180:]]).blocks
    assert [int(is_held_out_N[180:].sum()) for is_held_out_N, _ in blocks] == [12] * 5


def test_windows_without_articles_or_truth_are_left_out(examples):
    some = list(examples)
    some[0] = replace(some[0], view=replace(some[0].view, candidate_ids=()))
    holed = some[1].truth_H.copy()
    holed[3] = np.nan
    some[1] = replace(some[1], truth_H=holed)
    fit = _read(some).find(0, LOGIC)
    assert some[0].view.window_id not in fit.held_out
    assert np.isfinite(fit.held_out[some[1].view.window_id]).all()
    assert np.isfinite(fit.weights_ZH).all()

    empty = [replace(e, view=replace(e.view, candidate_ids=())) for e in examples]
    assert not _read(empty).find(0, LOGIC).weights_ZH.any()


def _make_row(title):
    return title, f"https://x.example/{title}", title, START


def _give(example, *names, level, **changes):
    """Return an example with some articles, whose truth is a level throughout or by step."""
    view = replace(example.view, candidate_ids=names, **changes)
    return replace(example, view=view, truth_H=np.zeros(48) + level)


def _read_titles(examples, titles, levels, *later, entities=("QLD1",)):
    """Fit on windows of a title each; return the fit, its windows, and later titles resolved."""
    changed = [
        _give(e, title, level=level, entity=entities[n % len(entities)])
        for n, (e, title, level) in enumerate(zip(examples, titles, levels, strict=True))
    ]
    # The embeddings are all alike: what differs stands in the words alone.
    pool = make_pool([_make_row(title) for title in (*titles, *later)], HashingEncoder())
    alike = np.repeat(sentence_encoder().encode(titles[:1]), len(pool.articles), axis=0)
    news = NewsPool(pool.articles, alike, sentence_encoder().name)
    reader = _read(changed, top_k=8, news=news)
    return reader, changed, [reader.retriever.resolve([title]) for title in later]


def test_a_number_is_read_by_its_words(examples):
    rng = np.random.default_rng(3)
    values, others = (rng.integers(10, 40, len(examples)) for _ in range(2))
    pairs = enumerate(zip(values, others, strict=True))
    titles = [f"{n}. Minimum {other}, maximum {value} degrees." for n, (value, other) in pairs]
    given = examples, titles, (values - 25) / 10.0, "Minimum 39, maximum 10 degrees."
    reader, changed, (cold,) = _read_titles(*given, entities=("NSW1", "SA1"))
    sealed = SealedReadings({0: MemberConfig()}, SIZE)
    sealed.store(reader, [LOGIC])

    for fit in (reader.find(0, LOGIC), sealed.find(0, "any")):
        assert fit.predict(changed[0].view, cold).mean() == pytest.approx(-1.5, abs=0.3)


def test_a_number_moves_each_entity_by_its_weight(examples):
    rng = np.random.default_rng(6)
    values = rng.integers(10, 40, len(examples))
    titles = [f"{n}. Maximum {value} degrees." for n, value in enumerate(values)]
    levels = (-1) ** np.arange(len(values)) * (values - 25) / 10.0
    given = examples, titles, levels, "Maximum 38 degrees."
    reader, changed, (hot,) = _read_titles(*given, entities=("QLD1", "TAS1"))
    warm, cold = (reader.find(0, LOGIC).predict(changed[n].view, hot).mean() for n in (0, 1))

    assert warm > 0.8 and cold < -0.8


def test_each_part_of_the_day_has_weights(examples):
    warm, cold = (sentence_encoder().encode([text])[0] for text in ("warm", "cold"))
    rng = np.random.default_rng(4)
    rows, embeddings, changed = [], [], []
    for n, example in enumerate(examples):
        is_warm = rng.integers(2, size=2)
        for part, warmth in zip(("morning", "evening"), is_warm, strict=True):
            title = f"{n} in the {part}"
            rows.append(_make_row(title))
            embeddings.append(warm if warmth else cold)
        level_H = np.repeat([is_warm[0] - 0.5, 0.5 - is_warm[1]], 24)
        changed.append(_give(example, *(row[0] for row in rows[-2:]), level=level_H))
    pool = make_pool(rows, HashingEncoder())
    news = NewsPool(pool.articles, np.stack(embeddings), "packaged")
    reader = _read(changed, top_k=8, news=news)
    told = {"In the morning": warm, "In the evening": cold}
    articles = [RetrievedArticle(title, "1 Jan", title, read) for title, read in told.items()]
    reading_H = reader.find(0, LOGIC).predict(examples[0].view, articles)

    # Their mean is that of every other day, and would be read as nothing.
    assert reading_H.min() > 0.3


def test_the_meaning_of_a_word_turns_with_seasons(examples):
    sky = ["clear sky", "clouds"]
    rows = [_make_row(title) for title in sky]
    rng = np.random.default_rng(5)
    changed = []
    for n, (e, is_clear) in enumerate(zip(examples, rng.integers(2, size=240), strict=True)):
        calendar = replace(e.view.calendar, day_of_year=1 + 365 * n // len(examples))
        warmth = (is_clear - 0.5) * -np.cos(2 * np.pi * calendar.day_of_year / 365.25)
        changed.append(_give(e, sky[1 - is_clear], level=warmth, calendar=calendar))
    begun = [replace(e, view=replace(e.view, candidate_ids=())) for e in changed[:120]]

    for known in (changed, begun + changed[120:]):
        reader = _read(known, top_k=8, news=make_pool(rows, sentence_encoder()))
        clear = reader.retriever.resolve(["clear sky"])
        winter, summer = (reader.find(0, LOGIC).predict(changed[n].view, clear) for n in (0, 120))
        assert (winter.max() < -0.2 < 0.2 < summer.min()) == (known is changed)


@pytest.mark.parametrize(
    ("title", "part", "values"),
    [
        ("Rain in the early morning, clearing by the evening", "morning", []),
        ("Overnight low of 7.5 degrees", "night", [7.5, 7.5]),
        ("Chance of rain: 60%. In 2019, -3 at noon", "afternoon", [60.0, 2019.0, -3.0]),
        ("Change since Friday: lowest -3, COVID-19 at rest", "", [-3.0, 19.0, 19.0]),
        ("Nothing at all", "", []),
    ],
)
def test_words_have_parts_of_the_day_and_neighbours(title, part, values):
    words = read_words(title, "NSW1")
    assert PARTS[words.part] == part
    assert [value for _, value in words.numbers] == values


def test_a_number_keeps_its_key_in_every_process():
    assert read_words("Maximum 31", "NSW1").numbers == ((71538996451018960, 31.0),)


def test_articles_that_act_come_first(examples):
    reader = _read(examples, top_k=MOST_ARTICLES)

    # Windows with news of only one acting topic: it explains the whole error.
    effects = planted_world().effects
    batch = [e for e in examples if effects[e.view.window_id]][:8]
    values_BH = torch.zeros(8, 48)
    found = list_best_unread(reader, 0, batch, [()] * 8, values_BH, np.random.default_rng(0), 4)
    assert len(found) == 4
    acting = [template.split("{place}") for topic in SIGNS for template in HEADLINES[topic]]
    assert all(any(all(p in title for p in parts) for parts in acting) for title, _ in found)
    changes = [change for _, change in found]
    assert changes == sorted(changes) and changes[0] < -0.5

    # What an agent has read is not unread; where it read all, nothing is left.
    everything = [example.view.candidate_ids for example in batch]
    rng = np.random.default_rng(0)
    assert not list_best_unread(reader, 0, batch, everything, values_BH, rng, 4)


def test_numbers_that_run_with_time_are_not_read(examples):
    # The target drifts with them for most of train, as a series does that grows, and then no more.
    rng = np.random.default_rng(8)
    by_time = sorted(examples, key=lambda e: e.view.origin_utc)
    # Titles as papers write them: a year, cases that mount up, a story's own number, a price.
    at = np.arange(len(by_time))
    cases = 100 + 7 * at + rng.integers(0, 20, len(at))
    prices = np.round(40 + 0.1 * at + np.cumsum(rng.normal(size=len(at))), 1)
    text = "In {} cases reach {}; story {}. Coal at {} dollars"
    titles = [text.format(2019 + n // 100, cases[n], 81_000 + 13 * n, prices[n]) for n in at]
    level = np.minimum(at, 0.75 * len(at)) / 40
    noisy = (level - level.mean())[:, None] + rng.normal(size=(len(at), 48))
    later = text.format(2022, 9000, 99000, 400.0)
    reader, changed, (article,) = _read_titles(by_time, titles, noisy, later)

    fit = reader.find(0, LOGIC)
    assert not fit.keys_F.any()
    assert np.abs(fit.predict(changed[-1].view, article)).max() < 0.1


def test_a_number_is_clipped_to_its_train_range(examples):
    rng = np.random.default_rng(9)
    values = rng.integers(10, 40, len(examples))
    stories = rng.permutation(90_000)[: len(examples)]
    titles = [f"Story {s}: maximum {v} degrees." for s, v in zip(stories, values, strict=True)]
    named = ["Story 7: maximum 39 degrees.", "Story 8: maximum 390 degrees."]

    reader, changed, later = _read_titles(examples, titles, (values - 25) / 10.0, *named)
    fit = reader.find(0, LOGIC)
    hottest, beyond = (fit.predict(changed[0].view, articles) for articles in later)

    assert hottest.mean() > 1.0
    # The word before and the word after it; the story's own number hardly ever repeats.
    assert (fit.keys_F > 0).sum() == 2
    np.testing.assert_array_equal(beyond, hottest)


OUTAGES = "Track news about power outages in any region, at night, as a sign of x."
SOLAR = "Track news about rooftop solar in any region, at night, as a sign of x."
CONFIG = RunConfig.preset("specialists")


def _equal(examples, agents):
    return np.full((len(examples), agents), 1 / agents)


def _score(examples, played, logic, agent=0, config=CONFIG):
    """The gains of a logic of an agent, by window, given what all agents play."""
    weights_NA = _equal(examples, len(played))
    scorer = LogicScorer(_read(examples, len(played)), config)
    return scorer.score(agent, [logic], played, weights_NA, np.zeros(len(played), dtype=bool))[0]


def _sum(examples, fits, weights_A):
    """What a population reads in each window, held out."""
    nothing = np.zeros(48)
    names = [e.view.window_id for e in examples]
    pairs = zip(fits, weights_A, strict=True)
    return sum(w * np.array([f.held_out.get(name, nothing) for name in names]) for f, w in pairs)


def test_a_lone_agent_is_read_as_by_itself(examples):
    reader = _read(examples)
    (joint,), own = fit_jointly(reader, [OUTAGES], _equal(examples, 1)), reader.find(0, OUTAGES)
    np.testing.assert_allclose(joint.weights_ZH, own.weights_ZH, atol=1e-6)
    for name, values_H in own.held_out.items():
        np.testing.assert_allclose(joint.held_out[name], values_H, atol=1e-6)


def test_two_agents_read_what_neither_reads_alone(examples):
    reader = _read(examples, 2)
    together = fit_jointly(reader, [OUTAGES, SOLAR], _equal(examples, 2))
    alone = [reader.find(0, OUTAGES), reader.find(1, SOLAR)]
    truth_NH = np.stack([e.truth_H for e in examples])
    ways = (together, [0.5, 0.5]), (alone, [0.5, 0.5]), (alone, [1.0, 0.0])
    left = (truth_NH - _sum(examples, fits, weights) for fits, weights in ways)
    joint, mean, first = (float((left_NH**2).mean()) for left_NH in left)

    assert joint < first - 0.5
    assert joint < mean - 0.5  # the mean of both halves what one of them reads


def test_an_agent_without_weight_says_nothing(examples):
    reader = _read(examples, 2)
    weights_NA = np.tile([1.0, 0.0], (len(examples), 1))
    first, second = fit_jointly(reader, [OUTAGES, SOLAR], weights_NA)
    assert not second.weights_ZH.any()
    np.testing.assert_allclose(first.weights_ZH, reader.find(0, OUTAGES).weights_ZH, atol=1e-6)

    # Where an agent has all the weight of a series, the other reads nothing of that series.
    is_home = np.array([e.view.entity == "NSW1" for e in examples])
    by_series_NA = np.stack([is_home, ~is_home], axis=1).astype(float)
    apart = fit_jointly(reader, [OUTAGES, OUTAGES], by_series_NA)
    assert np.abs(apart[0].weights_ZH - apart[1].weights_ZH).max() > 1e-3


def test_a_shared_niche_is_paid_less_than_once(examples):
    alone = _score(examples, [OUTAGES], OUTAGES).mean()
    shared = [_score(examples, [OUTAGES] * 2, OUTAGES, agent).mean() for agent in (0, 1)]
    free = _score(examples, [OUTAGES, SOLAR], SOLAR, 1).mean()
    assert alone > 0.3
    assert sum(shared) < 0.3 * alone
    assert free > 3 * max(shared)
    assert abs(_score(examples, [OUTAGES, NOISE], NOISE, 1).mean()) < 0.2 * free


def test_readings_of_one_niche_add_little_where_each_fits_alone(examples):
    config = CONFIG.with_overrides({"news.fit": "own"})
    both = [OUTAGES, NOISE], [OUTAGES, OUTAGES]
    alone, shared = (_score(examples, played, OUTAGES, config=config).mean() for played in both)
    assert alone > 0.1
    assert shared < 0.7 * alone  # the mean of two readings is one of them


def test_an_agent_paid_by_its_own_error_is_scored_by_its_own_reading(examples):
    config = CONFIG.with_overrides({"evolution.credit": "own"})
    gain_N = _score(examples, [OUTAGES, SOLAR], OUTAGES, config=config)

    reader = _read(examples, 2)
    missed_NH = reader.truth_NH - reader.base_ANH[0]
    left_NH = missed_NH - _sum(examples, [reader.find(0, OUTAGES)], [1.0])
    np.testing.assert_allclose(gain_N, (missed_NH**2 - left_NH**2).mean(1), atol=1e-12)


def test_the_second_agent_takes_the_niche_left(examples):
    reader = _read(examples, 2)
    selection = FitnessSelection(2, CONFIG.selection, pays_contribution=True)
    scorer, groups = LogicScorer(reader, CONFIG), [[OUTAGES], [OUTAGES, SOLAR]]

    turns = take_turns(scorer, selection, [NOISE, NOISE], groups, LogicRecords(), [0, 1])
    record = turns.describe(2)

    assert turns.logics == [OUTAGES, SOLAR] and not turns.is_idle_A.any()
    assert turns.gain_AN.shape == (2, len(examples))
    np.testing.assert_allclose(record["rewards"], turns.gain_AN.mean(1))
    assert record["best_response_gap"][1] > 0


def test_a_useless_agent_is_left_out_and_returns(examples):
    selection = FitnessSelection(2, CONFIG.selection, pays_contribution=True)
    scorer = LogicScorer(_read([replace(e, truth_H=e.truth_H * 0) for e in examples], 2), CONFIG)

    def take(scorer, selection, order=(0, 1)):
        return take_turns(scorer, selection, [OUTAGES, SOLAR], [[], []], LogicRecords(), order)

    assert take(scorer, selection).is_idle_A.all()

    # With equal weights no agent is left out.
    alike = FitnessSelection(2, SelectionConfig(uniform=True), pays_contribution=True)
    alike.fitness_EA += torch.tensor([1.0, 0.0])
    assert not take(scorer, alike).is_idle_A.any()
    assert alike.open_weights([""]).tolist() == [[0.5, 0.5]]
    selection.is_idle_A[:] = True
    assert selection.weights([""]).tolist() == [[0.5, 0.5]]  # all are: they stay as they were
    selection.is_idle_A[0] = False
    assert selection.weights([""]).tolist() == [[1.0, 0.0]]
    assert selection.open_weights([""]).tolist() == [[0.5, 0.5]]
    back = take(LogicScorer(_read(examples, 2), CONFIG), selection, [1])
    assert not back.is_idle_A.any()


def test_a_generalist_reads_the_sum_of_all(examples):
    generalist = MemberConfig(reads="everything")
    reader = _read(examples, [generalist, MemberConfig()])
    fit = reader.find(0, "any")
    view = examples[0].view
    ids = reader.retriever.retrieve_for(reader.members[0], "any", [view])[0]
    articles = reader.retriever.resolve(ids)

    assert len(articles) == len(view.candidate_ids)
    total = np.sum([article.embedding for article in articles], axis=0) - fit.mean_X[:384]
    expected_H = total @ fit.weights_ZH[:384]
    np.testing.assert_allclose(fit.predict(view, articles), expected_H, atol=1e-4)


def test_a_reader_is_fitted_on_its_own_windows(examples):
    members, retriever = [MemberConfig()] * 2, _read(examples, 2).retriever
    is_own_AN = np.ones((2, len(examples)), dtype=bool)
    is_own_AN[1, ::2] = False
    others = [replace(e, truth_H=-e.truth_H) if i % 2 == 0 else e for i, e in enumerate(examples)]
    shared = retriever, members, np.ones((2, 1)), is_own_AN
    readers = [FittedReader(known, *shared) for known in (examples, others)]

    fits = ([reader.find(agent, OUTAGES) for reader in readers] for agent in (0, 1))
    of_all, of_own = ([fit.weights_ZH for fit in of_agent] for of_agent in fits)

    assert not np.array_equal(*of_all)
    np.testing.assert_array_equal(*of_own)


def test_changed_weights_or_logics_fit_the_reader_again(examples):
    selection = FitnessSelection(2, SelectionConfig())
    reader = JointReader(_read(examples, 2), selection)
    with pytest.raises(DataError, match="settle what all"):
        reader.find(0, OUTAGES)
    reader.settle([OUTAGES, SOLAR])
    first = reader.find(0, OUTAGES)
    selection.fitness_EA += torch.tensor([1e-4, 0.0])  # by less than gates move in a round
    reader.settle([OUTAGES, SOLAR])
    assert reader.find(0, OUTAGES) is first
    selection.fitness_EA += torch.tensor([0.1, 0.0])
    reader.settle([OUTAGES, SOLAR])

    assert reader.find(0, OUTAGES) is not first
    with pytest.raises(DataError, match="not fitted under"):
        reader.find(1, OUTAGES)

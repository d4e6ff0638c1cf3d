"""What is read from news: the audit of real news, planted news, worded data and public tasks.

What belongs here: each as a verdict, tables and plots, for terminal, page and docs; the share of
the planted effect that each arm recovers, which topics logics name, what agents read, whether
specialists that are read together read more than other populations. What does not: measuring any of
it (``paper.news_audit``, ``paper.control``, ``paper.context_is_key``).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import fmean, stdev
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from scipy import stats

from compevo_core.paper.changes import IRRELEVANT, NONE, OWN, SWAPPED
from compevo_core.paper.context_is_key import BOTH, NUMBERS, READER, SOURCES
from compevo_core.paper.declared import read_declared
from compevo_core.paper.news_audit import ALL, ANY, DECLARED, MOST, MOVED, REST
from compevo_core.paper.planted_news import AFTER_TRAINING, BEST_AGENT, EVOLVED, MEAN, PRIOR, SUM
from compevo_core.paper.report import figures
from compevo_core.paper.report.inputs import (
    TrainingRun,
    find_side,
    format_interval,
    format_number,
    format_with_unit,
    group_rows,
)
from compevo_core.paper.report.paper_tables import CONTEXT, find_published, list_subjects
from compevo_core.report.charts import ACCENT, GOLD, GREEN, INK, MUTED, OTHER_BARS, PURPLE, RED
from compevo_core.report.tables import (
    MISSING,
    Row,
    Table,
    format_percent,
    join_items,
    scope_name,
    tabulate,
)

_READERS = {"run": "the trained population", "probe": "a ridge on words"}
KINDS = {ALL: "All windows", DECLARED: "Declared days: {group}", MOVED: "Moved by news: {group}"}
MOST_TOPICS = 3  # at most this many topics that an agent read about are named
_BARS = {
    OWN: ("own news", ACCENT),
    NONE: ("no news", OTHER_BARS),
    SWAPPED: ("another day's news", GOLD),
}
_OTHERS = {NONE: "no news", SWAPPED: "news of another day", IRRELEVANT: "irrelevant news"}
_AUDITED = ("dataset", "source", "subset")  # rows that agree in these are one audited scope


def _pick(rows: Iterable[Row], **facts: object) -> list[Row]:
    """Return the rows that have these values."""
    return [row for row in rows if all(row[name] == value for name, value in facts.items())]


def judge_news(rows: Sequence[Row]) -> str:
    """Say whether own news helped in one scope, against no news and against another day's news.

    If days were declared beforehand, they decide. A gain only over no news is not called help:
    these articles must do better than any others.
    """
    groups = _group_rows(rows)
    overall = groups[ALL, ALL]
    declared = groups.get((DECLARED, ANY), overall)
    own_news = overall[OWN]
    if own_news["verdict"]:
        return str(own_news["verdict"])
    return (
        f"{_judge(declared[NONE], declared[SWAPPED])} "
        f"{own_news['n_windows']:,} windows, "
        f"{format_percent(own_news['n_with_news'] / own_news['n_windows'])} of them with at least "
        f"one article. MAE {format_with_unit(own_news['mae'], own_news['unit'])} with own news, "
        f"{format_number(overall[NONE]['mae'])} without, "
        f"{format_number(overall[SWAPPED]['mae'])} with news of another day."
    )


def _judge(none: Row, swapped: Row) -> str:
    if none["interval_low"] is None or swapped["interval_low"] is None:
        return "Unknown: there are too few days for an interval."
    # Intervals, not means: with a few hundred windows a difference of a megawatt may be chance.
    if find_side(none) < 0 and not swapped["n_with_news"]:
        return "Better than without news; there is no news of another day to compare with."
    if find_side(none) < 0 and find_side(swapped) < 0:
        return "Yes, the news helps."
    if find_side(none) < 0:
        return "The gain is not from this day's news: news of another day helps as much."
    if find_side(none) > 0:
        share = format_percent(none["difference"] / none["mae"])
        return f"No gain: the error is {share} higher with news than without, by this one model."
    return "No measurable gain: the confidence interval includes zero."


def _group_rows(rows: Sequence[Row]) -> Mapping[tuple[str, str], Mapping[str, Row]]:
    """Return rows by kind and group, then by news, in the order in which they were measured."""
    return {
        (group[0]["group_kind"], group[0]["group"]): {row["news"]: row for row in group}
        for group in group_rows(rows, "group_kind", "group")
    }


def audit_table(rows: Sequence[Row]) -> Table:
    """Return effects by group: own news less each other kind, with intervals."""
    first = rows[0]
    # The topics of each agent are shown with its logic.
    groups = _group_rows([row for row in rows if not row["group_kind"].startswith("agent ")])

    return tabulate(
        groups.values(),
        {
            "Group": lambda by_news: KINDS.get(by_news[OWN]["group_kind"], "{group}").format(
                **by_news[OWN]
            ),
            "Windows": lambda by_news: format_number(by_news[OWN]["n_windows"]),
            "With news": lambda by_news: format_number(by_news[OWN]["n_with_news"]),
            f"MAE {first['unit']}": lambda by_news: format_number(by_news[OWN]["mae"]),
            **{f"less {name}": partial(_format_effect, news) for news, name in _OTHERS.items()},
            "seen from": lambda by_news: format_number(by_news[OWN].get("seen_from_sd")),
        },
        caption=f"{scope_name(first['dataset'], first['subset'])}: does news help "
        f"{_READERS.get(first['source'], first['source'])}?",
        verdict=judge_news(rows),
        wrap_columns=(4, 5, 6),
        highlighted=(0,),
        notes=(_NOTES["audit"],),
    )


def _format_effect(news: str, by_news: Mapping[str, Row]) -> str:
    row = by_news.get(news)
    if row is not None and row["source"] == "probe":
        return format_number(row["difference"])
    if row is None or row["interval_low"] is None:
        return MISSING
    # A control that found no article to read is not a control.
    if row["news"] != NONE and not row["n_with_news"]:
        return MISSING
    return f"{format_number(row['difference'])} ({format_interval(row)})"


def find_audit(run: TrainingRun, rows: Sequence[Row]) -> list[Row]:
    """Return the rows of a run's sealed model on its largest audited test set, if there is one."""
    model = run.summary.get("artifact_hash", "not sealed")
    of_model = _pick(rows, split="test", artifact_hash=model)
    return max(group_rows(of_model, *_AUDITED), key=lambda scope: scope[0]["n_windows"], default=[])


def plot_news_errors(rows: Sequence[Row]) -> figures.Plot | None:
    """Plot errors by what is read, where news moves forecasts most; None if it moves none."""
    groups = _group_rows(rows)
    if (MOVED, MOST) not in groups:
        return None

    own_errors = groups[MOVED, MOST][OWN], groups[MOVED, REST][OWN]
    errors = {
        label: [groups[MOVED, group][news]["mae"] for group in (MOST, REST)]
        for news, (label, _) in _BARS.items()
    }
    texts = [f"{name} {' and '.join(map(format_number, both))}" for name, both in errors.items()]
    alt = f"Bars of the MAE where news moves the forecast most, and elsewhere: {join_items(texts)}."
    look: figures.Style = {
        "title": f"MAE on test windows, {own_errors[0]['unit']}",
        "is_counted": False,
    }

    def add_bars(axis: Axes) -> None:
        for place, (label, colour) in enumerate(_BARS.values()):
            bars = axis.bar([place, place + 4], errors[label], 0.9, color=colour, label=label)
            axis.bar_label(bars, list(map(format_number, errors[label])), color=INK, fontsize=8)
        most, rest = (row["n_windows"] for row in own_errors)
        axis.set_xticks([1, 5], [f"moved most by news: {most}", f"others: {rest}"])
        axis.grid(visible=False, axis="x")
        axis.margins(y=0.1)
        figures.add_legend(axis)

    return figures.plot_lines([], alt, size=figures.THIRD, finish=add_bars, **look)


def list_read_topics(rows: Sequence[Row], agent: int) -> str:
    """Return the topics an agent read about, with windows and the error that news saved there."""
    read = _pick(rows, group_kind=f"agent {agent}", news=NONE)
    ranked = sorted(read, key=lambda row: row["difference"])[:MOST_TOPICS]
    texts = [f"{r['group']} ({r['n_windows']}, {format_number(-r['difference'])})" for r in ranked]
    return ", ".join(texts) or MISSING


#: Planted news and worded data: what each arm reads, and what it recovers.
_DECLARED, _NOTES = read_declared("arms"), read_declared("notes")
ARM_TITLES, SPECIALIST_TITLES, TEXT_TITLES, _WORLD_TITLES, QUESTIONS = (
    _DECLARED[kind] for kind in ("reading", "specialists", "text", "worlds", "questions")
)
SEARCH_TITLES = {arm: declared["title"] for arm, declared in _DECLARED["search"].items()}
FLAT, POLICY = "flat", "policy"
_DECISIVE_SEEDS = 5  # that the experiment has at least
CONTEXT_TITLES = {
    NUMBERS: "ours, only numbers",
    READER: "ours, written by {model}",
    BOTH: "ours, half only numbers, half {model}",
}
_STYLES: dict[str, figures.Style] = {
    "seed-logics": {"color": GOLD},
    EVOLVED: {"color": ACCENT, "linewidth": 2.4},
    "oracle-logics": {"color": GREEN, "linestyle": (0, (4, 2))},
    SUM: {"color": PURPLE, "linestyle": (0, (1.2, 1.2))},
    "swapped-news": {"color": RED},
}


def list_controls(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows that compare readers, by data set and kind of world."""
    return group_rows((row for row in rows if row["arm"] in ARM_TITLES), "dataset", "world")


def list_search_tables(rows: Sequence[Row]) -> list[Table]:
    """Return the table of ways to write logics, for each data set."""
    searches = [row for row in rows if row["arm"] in SEARCH_TITLES]
    return list(map(search_table, group_rows(searches, "dataset")))


def format_control(rows: Sequence[Row], rounds: Sequence[Row]) -> str:
    """Return the control of every data set as Markdown: verdict, table, picture."""
    parts = []
    for control in list_controls(rows):
        plots = show_control(control, rounds).plots
        images = "\n".join(f"![{plot.alt}]({plot.source})" for plot in plots)
        parts.append(control_table(control).to_titled_markdown(images))
    parts += [table.to_titled_markdown() for table in list_search_tables(rows)]
    text = "\n\n".join(parts)
    return text or "*No rows yet: `compevo paper experiment control DATASET` makes them.*"


def summarize_evidence(control: Sequence[Row], text: Sequence[Row]) -> str:
    """Say what evolved logics find in all planted worlds, and for how many sets words help."""
    shares = [
        evolved / oracle
        for rows in list_controls(control)
        for effect in sorted({row["effect"] for row in rows if row["effect"]})
        if (evolved := _mean(_pick(rows, effect=effect, arm=EVOLVED), "slope")) is not None
        and (oracle := _mean(_pick(rows, effect=effect, arm="oracle-logics"), "slope"))
    ]
    sentences = []
    if shares:
        low, high = format_percent(min(shares)), format_percent(max(shares))
        sentences.append(
            f"Evolved logics recover {low} to {high} of what logics that name the planted effect "
            f"recover, in {len(shares)} world(s); the tables compare them with draws by chance."
        )

    # Better by more than chance: the mean interval over the seeds is below zero.
    ridges = group_rows(_pick(text, arm="ridge"), "dataset", "split")
    highs = [_mean(ridge, "interval_high") for ridge in ridges]
    if highs:
        gains = sum(high is not None and high < 0 for high in highs)
        sentences.append(
            f"A ridge on all articles beats the calendar ridge, with an interval below zero, in "
            f"{gains} of {len(highs)} sets of worded data."
        )
    return " ".join(sentences) or "No world and no words have all arms yet."


def judge_control(rows: Sequence[Row]) -> str:
    """Say how near the evolved logics come to logics that name the acting topics."""
    sentences = []
    for effect in sorted({row["effect"] for row in rows if row["effect"]}):
        evolved, oracle, seeds = (
            _mean(_pick(rows, effect=effect, arm=arm), "slope")
            for arm in (EVOLVED, "oracle-logics", "seed-logics")
        )
        precision = _mean(_pick(rows, effect=effect, arm=EVOLVED), "precision")
        if evolved is None or oracle is None or seeds is None:
            continue

        sentences.append(
            f"At effect {effect:g} the evolved logics read {evolved:.2f} of it, while logics that "
            f"name the acting topics read {oracle:.2f} and seed logics {seeds:.2f}; "
            f"{format_percent(precision)} of the topics that they name act."
        )
    return " ".join(sentences) or "There is no world with an effect and all arms."


def _tabulate_arms(
    lines: Sequence[list[Row]],
    cells: Mapping[str, Callable[[list[Row]], str]],
    highlighted: str,
    **layout: Any,  # noqa: ANN401
) -> Table:
    """Return a table of the arms that have rows, each the mean over its seeds; one is shaded."""
    known = [line for line in lines if line]
    shaded = [i for i, line in enumerate(known) if line[0]["arm"] == highlighted]
    return tabulate(known, cells, highlighted=shaded, **layout)


def control_table(rows: Sequence[Row]) -> Table:
    """Return one line for each effect and arm, as means over the seeds."""
    return _tabulate_arms(
        [
            _pick(rows, effect=effect, arm=arm)
            for effect in sorted({row["effect"] for row in rows})
            for arm in ARM_TITLES
        ],
        {
            "Effect": lambda line: f"{line[0]['effect']:g}",
            "Arm": lambda line: ARM_TITLES[line[0]["arm"]],
            "Seeds": lambda line: str(len(line)),
            f"MAE {rows[0]['unit']}": lambda line: format_number(_mean(line, "mae")),
            "Recovered": _format_recovered,
            "Slope": partial(_format_with_spread, "slope"),
            "effect_r2": partial(_format_with_spread, "effect_r2"),
            "Precision": partial(_format_named, "precision"),
            "Recall": partial(_format_named, "recall"),
        },
        EVOLVED,
        caption=f"{rows[0]['dataset'].capitalize()}, {_WORLD_TITLES[rows[0]['world']]}: what is "
        "found in news of known value",
        verdict=judge_control(rows),
        text_columns=(1,),
        notes=(_NOTES["control"],),
    )


def search_table(rows: Sequence[Row]) -> Table:
    """Return one line for each world, effect and way to write logics, as means over the seeds."""
    worlds = sorted({(row["world"], row["effect"]) for row in rows}, reverse=True)

    def compare(reference: str, line: Sequence[Row]) -> str:
        first = line[0]
        is_compared = "is_part" in _DECLARED["search"][first["arm"]] or reference == FLAT
        if first["arm"] == reference or not is_compared:
            return MISSING
        others = _pick(rows, world=first["world"], effect=first["effect"], arm=reference)
        return _format_gain(_pair(line, others, "slope"))

    return _tabulate_arms(
        [
            _pick(rows, world=world, effect=effect, arm=arm)
            for world, effect in worlds
            for arm in SEARCH_TITLES
        ],
        {
            "World": lambda line: _WORLD_TITLES[line[0]["world"]],
            "Effect": lambda line: f"{line[0]['effect']:g}",
            "New logics": lambda line: SEARCH_TITLES[line[0]["arm"]],
            "Seeds": lambda line: str(len(line)),
            f"MAE {rows[0]['unit']}": lambda line: format_number(_mean(line, "mae")),
            "Slope": partial(_format_with_spread, "slope"),
            "less flat draws": partial(compare, FLAT),
            "less the policies": partial(compare, POLICY),
            "Precision": partial(_format_named, "precision"),
            "Recall": partial(_format_named, "recall"),
        },
        POLICY,
        caption=f"{rows[0]['dataset'].capitalize()}: who writes logics, as many for each",
        text_columns=(0, 2),
        notes=(_NOTES["search"],),
    )


class Gain(NamedTuple):
    """Mean of paired differences, and its 95 % interval to each side by Student's t."""

    mean: float
    half: float
    seeds: int

    @property
    def side(self) -> int:
        """1 if the whole interval is above zero, -1 if below; 0 if it includes zero."""
        return 0 if abs(self.mean) <= self.half else 1 if self.mean > 0 else -1


def _pair(rows: Sequence[Row], others: Sequence[Row], key: str) -> Gain | None:
    """Return by how much rows exceed others of the same world and seed; None without two pairs."""
    known = {(row["world"], row["seed"]): row[key] for row in others}
    pairs = [
        row[key] - other
        for row in rows
        if (other := known.get((row["world"], row["seed"]))) is not None and row[key] is not None
    ]
    if len(pairs) < 2:
        return None
    half = stats.t.ppf(0.975, len(pairs) - 1) * stdev(pairs) / len(pairs) ** 0.5
    return Gain(fmean(pairs), float(half), len(pairs))


def _format_gain(gain: Gain | None) -> str:
    return MISSING if gain is None else f"{gain.mean:+z.2f} ± {gain.half:.2f}"


def judge_question(gains: Sequence[Gain | None]) -> str:
    """Answer a question by the paired differences of effect_r2 in some worlds."""
    known = [gain for gain in gains if gain is not None]
    if not known:
        return "No world has two seeds yet."
    # An interval from a few seeds includes zero with or without a difference.
    is_open = any(gain.side == 0 and gain.seeds < _DECISIVE_SEEDS for gain in known)
    none = "undecided with so few seeds" if is_open else "no measurable difference"
    if len(known) == 1:
        answer = {1: "Yes", 0: none.capitalize(), -1: "No, less"}[known[0].side]
        return f"{answer}: {_format_gain(known[0])} of effect_r2, {known[0].seeds} seeds."

    counts = {side: [gain.mean for gain in known if gain.side == side] for side in (1, -1, 0)}
    names = {1: "more", -1: "less", 0: none}
    parts = [
        f"{names[side]} in {len(means)} ({min(means):+z.2f} to {max(means):+z.2f})"
        for side, means in counts.items()
        if means
    ]
    answer = "Yes" if len(counts[1]) == len(known) else "In some" if counts[1] else "No"
    answer = "Not decided" if answer == "No" and is_open else answer
    return f"{answer}: of {len(known)} worlds, {join_items(parts)} of effect_r2."


def answers_table(rows: Sequence[Row]) -> Table:
    """Return one line for each kind of world with an effect, with a column for each question."""
    worlds = group_rows([row for row in rows if row["effect"]], "world", "agents", "effect")
    known = {row["arm"] for row in rows}
    titles = {
        question: " less ".join(SPECIALIST_TITLES[arm].partition(":")[0] for arm in arms)
        for question, arms in QUESTIONS.items()
        if known.issuperset(arms)
    }

    def compare(question: str, world: Sequence[Row]) -> Gain | None:
        first, other = (_pick(world, arm=arm) for arm in QUESTIONS[question])
        return _pair(first, other, "effect_r2")

    def answer(question: str, world: Sequence[Row]) -> str:
        return _format_gain(compare(question, world))

    return tabulate(
        worlds,
        {
            "World": lambda world: _WORLD_TITLES[world[0]["world"]],
            "Effect": lambda world: f"{world[0]['effect']:g}",
            "Agents": lambda world: str(world[0]["agents"]),
            "Seeds": lambda world: str(len({row["seed"] for row in world})),
            **{title: partial(answer, question) for question, title in titles.items()},
        },
        caption=f"{rows[0]['dataset'].capitalize()}: what agents that are read together add",
        verdict=" ".join(
            f"{question} {judge_question([compare(question, world) for world in worlds])}"
            for question in titles
        ),
        notes=(_NOTES["answers"],),
    )


def specialists_table(rows: Sequence[Row]) -> Table:
    """Return one line for each arm, with its effect_r2 in each kind of world with an effect."""
    worlds = group_rows([row for row in rows if row["effect"]], "world", "agents", "effect")
    cells: dict[str, Callable[[str], str]] = {"Arm": SPECIALIST_TITLES.__getitem__}
    for world in worlds:
        first = world[0]
        title = f"{first['world']}, {first['agents']} agents, effect {first['effect']:g}"
        cells[title] = partial(
            lambda world, arm: _format_with_spread("effect_r2", _pick(world, arm=arm)), world
        )

    known = {row["arm"] for row in rows}
    arms = [arm for arm in SPECIALIST_TITLES if arm in known]
    return tabulate(
        arms,
        cells,
        caption=f"{rows[0]['dataset'].capitalize()}: effect_r2 of every arm",
        verdict=judge_no_effect(rows),
        highlighted=[i for i, arm in enumerate(arms) if arm == EVOLVED],
    )


def judge_no_effect(rows: Sequence[Row]) -> str:
    """Say what specialists do with news that means nothing, and with news of another day."""
    sentences = []
    evolved, prior = (_pick(rows, effect=0.0, arm=arm) for arm in (EVOLVED, PRIOR))
    if (gain := _pair(evolved, prior, "mae")) is not None:
        sentences.append(
            "If news means nothing, specialists change the error of the calendar ridge by "
            f"{_format_gain(gain)} {rows[0]['unit']} ({gain.seeds} trainings)."
        )
    if (swapped := _mean(_pick(rows, arm="swapped-news"), "effect_r2")) is not None:
        sentences.append(f"With news of another day their effect_r2 is {swapped:.2f} on average.")
    return " ".join(sentences)


def judge_text(rows: Sequence[Row]) -> str:
    """Say how each kind of reader changes the calendar ridge's error, with own news or not."""
    by_arm = {arm: _pick(rows, arm=arm) for arm in TEXT_TITLES}
    hands = [arm for arm in by_arm if arm.startswith("hand-") and by_arm[arm]]
    best = min(hands, key=lambda arm: fmean(row["mae"] for row in by_arm[arm]), default=EVOLVED)
    names = {
        "ridge": "A ridge on all articles",
        "ridge-swapped": "with the articles of another day",
        EVOLVED: "evolved logics",
        "swapped-news": "with news of another day",
        best: "the best logics by hand" if hands else "evolved logics",
        "seed-logics": "the seed logics",
    }
    shares = [f"{name} {_format_share(by_arm[arm])}" for arm, name in names.items() if by_arm[arm]]
    return f"Change of the calendar ridge's error: {', '.join(shares)}."


def text_table(rows: Sequence[Row]) -> Table:
    """Return one line for each arm, as means over the seeds."""
    first = rows[0]
    foresight = " (perfect foresight: words made from the day that is forecast)"

    return _tabulate_arms(
        [_pick(rows, arm=arm) for arm in TEXT_TITLES],
        {
            "Arm": lambda line: TEXT_TITLES[line[0]["arm"]],
            "Foresight": lambda line: "yes" if line[0]["foresight"] else "no",
            "Seeds": lambda line: str(len(line)) if line[0]["seed"] is not None else MISSING,
            f"MAE {first['unit']}": lambda line: format_number(_mean(line, "mae")),
            "Against the calendar ridge": _format_share,
            f"Interval {first['unit']}": _format_interval,
        },
        EVOLVED,
        caption=f"{first['dataset'].capitalize()}{foresight if first['foresight'] else ''}: what "
        f"is read from its words, {'validation' if first['split'] == 'val' else 'test'}",
        verdict=judge_text(rows),
        text_columns=(0, 1),
        notes=(
            f"{first['n_windows']} windows with articles. Interval: of the difference from "
            "the calendar ridge, 95 %, by blocks of days, its ends averaged over the seeds.",
        ),
    )


EVIDENCE: Mapping[str, tuple[Sequence[str], Sequence[Callable[[Sequence[Row]], Table]], str]] = {
    "audit": (_AUDITED, [audit_table], "audit-news DATASET"),
    "specialists": (["dataset"], [answers_table, specialists_table], "experiment specialists"),
    "text": (["dataset", "split"], [text_table], "experiment text NAME"),
}
"""For each kind of rows: the columns that tables differ in, their builder, the command."""


def list_evidence(kind: str, rows: Sequence[Row]) -> list[Table]:
    """Return the tables of every group of one kind of rows."""
    keys, makers, _ = EVIDENCE[kind]
    return [make_table(group) for group in group_rows(rows, *keys) for make_table in makers]


def format_evidence(kind: str, rows: Sequence[Row]) -> str:
    """Return tables as Markdown, each below its verdict, or the command that makes their rows."""
    text = "\n\n".join(table.to_titled_markdown() for table in list_evidence(kind, rows))
    return text or f"*No rows yet: `compevo paper {EVIDENCE[kind][-1]}` makes them.*"


def format_worth(specialists: Sequence[Row], text: Sequence[Row], audit: Sequence[Row]) -> str:
    """Return what news adds as a short Markdown table: planted, captions, real headlines."""
    planted = _pick(specialists, world="niches-wide", agents=5, effect=2.0)
    lines: list[tuple[str, ...]] = []
    for arm in (EVOLVED, "independent", "generalist"):
        if rows := _pick(planted, arm=arm):
            title = f"Planted news, {_WORLD_TITLES['niches-wide']} act"
            recovered = f"{format_percent(_mean(rows, 'recovered'))} of its cost recovered"
            share = _format_with_spread("effect_r2", rows)
            lines.append((title, SPECIALIST_TITLES[arm], share, recovered))

    if captions := _pick(text, foresight=True, arm=EVOLVED):
        title = "Captions of the day's own weather (perfect foresight)"
        lines.append((title, ARM_TITLES[EVOLVED], MISSING, _format_share(captions)))
    for rows in group_rows(_pick(audit, source="run", split="test"), *_AUDITED):
        news = _group_rows(rows)[ALL, ALL]
        title = f"Real headlines: {scope_name(rows[0]['dataset'], rows[0]['subset'])}"
        lines.append((title, _READERS["run"], MISSING, _judge(news[NONE], news[SWAPPED])))
    header = ("What is read", "By", "Share of the effect's variance", "Error")
    return Table(header=header, rows=lines, text_columns=(0, 1, 3)).to_markdown()


def format_context(rows: Sequence[Row]) -> str:
    """Return Context-is-Key as Markdown: our scores among the published ones."""
    if not rows:
        return "*No rows yet: `compevo paper experiment context` makes them.*"

    titles = [title.capitalize() for title in SOURCES.values()]
    lines: list[tuple[float, list[str]]] = [
        (figure.value, [name, figure.text, *([""] * (len(titles) - 1))])
        for name in list_subjects(CONTEXT)
        if (figure := find_published(CONTEXT, "all", name, "rcrps"))
    ]

    for line in group_rows(rows, "arm", "model"):
        by_source = {group[0]["source"]: group for group in group_rows(line, "source")}
        scores = [_mean(by_source.get(source, ()), "score") for source in SOURCES]
        cells = [MISSING if score is None else f"{score:.3f}" for score in scores]
        name = CONTEXT_TITLES[line[0]["arm"]].format(model=line[0]["model"])
        lines.append((scores[0] or 0.0, [f"**{name}**", *cells]))

    lines.sort(key=lambda line: line[0])
    header = ("Forecast", *titles)
    return Table(header=header, rows=[cells for _, cells in lines]).to_markdown()


def show_control(rows: Sequence[Row], rounds: Sequence[Row]) -> figures.Picture:
    """Return the slope by effect for each arm, and the topics named by rewriting."""
    dataset, world = rows[0]["dataset"], rows[0]["world"]
    caption = f"{dataset.capitalize()}, {_WORLD_TITLES[world]}: worlds with planted news"
    effects = sorted({row["effect"] for row in rows if row["effect"]})
    dose = [
        figures.Line(
            effects,
            [_mean(_pick(rows, effect=effect, arm=arm), "slope") for effect in effects],
            {"label": ARM_TITLES[arm], "marker": "o", "markersize": 3.5} | style,
        )
        for arm, style in _STYLES.items()
    ]

    of_dataset = _pick(rounds, dataset=dataset, world=world, arm=EVOLVED)
    numbers = sorted({row["rewriting"] for row in of_dataset})
    colours = (MUTED, GOLD, GREEN, ACCENT, PURPLE)

    named = [
        figures.Line(
            numbers,
            [_mean(_pick(of_dataset, effect=effect, rewriting=n), key) for n in numbers],
            {"label": f"{key}, effect {effect:g}", "color": colour} | style,
        )
        for effect, colour in zip(sorted({r["effect"] for r in of_dataset}), colours, strict=False)
        for key, style in (("precision", {}), ("recall", {"linestyle": (0, (4, 2))}))
    ]

    plots = [
        figures.plot_lines(
            dose,
            "Slope of the forecast on the planted effect by size of the effect, a line per arm.",
            size=figures.HALF,
            title="How much of the effect is read",
            x_label="effect, standard deviations",
            y_label="slope",
            is_counted=False,
            legend_columns=2,
        ),
        figures.plot_lines(
            named,
            "Precision and recall of the acting topics in the logics, by rewriting.",
            size=figures.HALF,
            title="Which topics the logics name",
            x_label="rewriting",
            y_label="mean over agents and seeds",
            legend_columns=2,
        ),
    ]
    return figures.Picture(plots, caption=caption)


def _mean(rows: Sequence[Row], key: str) -> float | None:
    values = [row[key] for row in rows if row[key] is not None]
    return fmean(values) if values else None


def _format_recovered(rows: Sequence[Row]) -> str:
    ends = _mean(rows, "recovered_low"), _mean(rows, "recovered_high")
    if rows[0]["arm"] == PRIOR or None in ends:
        return MISSING
    low, high = map(format_percent, ends)
    return f"{format_percent(_mean(rows, 'recovered'))} ({low} to {high})"


def _format_with_spread(key: str, rows: Sequence[Row]) -> str:
    values = [row[key] for row in rows if row[key] is not None]
    if not values or rows[0]["arm"] == PRIOR:
        return MISSING
    spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    return f"{fmean(values):.2f}{spread}"


def _format_named(key: str, rows: Sequence[Row]) -> str:
    if rows[0]["arm"] in (PRIOR, BEST_AGENT, SUM, MEAN, *AFTER_TRAINING):
        return MISSING
    return format_percent(_mean(rows, key))


def _format_share(rows: Sequence[Row]) -> str:
    """Return the difference from the calendar ridge as a share of its error, over the seeds."""
    if rows[0]["arm"] == PRIOR:
        return MISSING
    shares = [100 * row["difference"] / (row["mae"] - row["difference"]) for row in rows]
    spread = f" ± {stdev(shares):.1f}" if len(shares) > 1 else ""
    return f"{fmean(shares):+z.1f} %{spread}"


def _format_interval(rows: Sequence[Row]) -> str:
    low, high = _mean(rows, "interval_low"), _mean(rows, "interval_high")
    if rows[0]["arm"] == PRIOR or low is None or high is None:
        return MISSING
    return f"{low:+.3g} to {high:+.3g}"

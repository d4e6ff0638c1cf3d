"""What a search costs whose logics are read together: ``python -m benchmarks.search``.

What belongs here: 320 logics of five agents, scored on 256 made-up windows one agent after another,
as a training does: what the others read is put together once a turn. The reference joins the
columns of all agents for each logic and fits one ridge to them, with the same blocks and penalties;
every tenth logic is timed. Both must give the same rewards, and both embed logics and choose
articles once. What does not: how good the logics are (``compevo paper experiment specialists``).
"""

import numpy as np
import torch
import typer

from benchmarks.rows import RESULTS, describe_surroundings, measure_seconds, write_rows
from compevo_core.agents.decoders import ForecastExample
from compevo_core.agents.joint_reader import LogicScorer, Standing, interpolate
from compevo_core.agents.linear_reader import FittedReader
from compevo_core.agents.logics import SLOT_SEED_LOGICS, SlotDraws
from compevo_core.agents.retrieval import NewsRetriever
from compevo_core.agents.ridge import SEARCHED, fit_ridge
from compevo_core.config.run import RunConfig
from compevo_core.data.arrays import FloatArray
from compevo_core.lm.encoder import load_encoder
from compevo_core.paper.planted_news import PlantedNews, plant_news
from tests.support.population import windows

_LOGICS, _TIMED = 320, 32


def build_reader(config: RunConfig) -> FittedReader:
    """Return a reader of made-up windows whose news acts, before any logic is read."""
    encoder = load_encoder(config.news.encoder)
    world = plant_news(windows("train", 128), PlantedNews(effect=2.0), encoder)
    rng = np.random.default_rng(0)
    effects = [world.effects[view.window_id] for view in world.windows.views()]
    scaled = np.array(effects) / np.std(effects)
    examples = [
        ForecastExample(view, np.zeros((1, view.horizon)), effect + rng.normal(size=view.horizon))
        for view, effect in zip(world.windows.views(), scaled, strict=True)
    ]
    members = config.population.list_members()
    retriever = NewsRetriever(world.news, encoder, config.news.top_k)
    return FittedReader(examples, retriever, members, np.ones((len(members), 1)))


def refit(reader: FittedReader, agent: int, logic: str, standing: Standing) -> FloatArray:
    """Return the gains of a logic (N,) from two fits of the joined columns."""

    def measure(played: dict[int, str]) -> FloatArray:
        columns = [
            np.sqrt(standing.weights_NA[0, a]) * reader.design(a, of_agent).x_NK
            for a, of_agent in played.items()
        ]
        fit = fit_ridge(np.hstack(columns), truth_NH, reader.blocks, reader.is_known_N, SEARCHED)
        left_NH = truth_NH - fit.hold_out(np.hstack(columns), reader.blocks)
        return np.asarray((left_NH**2).mean(1))

    truth_NH = interpolate(reader.truth_NH)
    others = {a: of_agent for a, of_agent in enumerate(standing.logics) if a != agent}
    return measure(others) - measure(others | {agent: logic})


def main() -> None:
    """Measure both ways and write the row."""
    config = RunConfig.preset("specialists")
    agents = config.population.agents
    draws = SlotDraws(config, ["NSW1", "SA1"])
    generator = torch.Generator().manual_seed(0)
    played = list(SLOT_SEED_LOGICS[:agents])
    groups = [draws.draw(_LOGICS // agents, played, a, [], generator) for a in range(agents)]
    ours, theirs = build_reader(config), build_reader(config)
    equal_NA = np.full((len(ours.views), agents), 1 / agents)
    standing = Standing(played, equal_NA, equal_NA)

    def search() -> list[FloatArray]:
        ours.retriever.embed(logic for group in groups for logic in group)
        scorer = LogicScorer(ours, config)
        return [scorer.score(agent, group, standing) for agent, group in enumerate(groups)]

    timed = [(number % agents, number // agents) for number in range(_TIMED)]

    def refit_some() -> list[FloatArray]:
        theirs.retriever.embed(groups[agent][place] for agent, place in timed)
        return [refit(theirs, agent, groups[agent][place], standing) for agent, place in timed]

    _, cpu, gains = measure_seconds(search)
    _, cpu_of_some, expected = measure_seconds(refit_some)
    found = [gains[agent][place] for agent, place in timed]
    gap = float(np.abs(np.array(found) - np.array(expected)).max())
    if gap > 1e-6:
        raise ArithmeticError(f"rewards differ by {gap:.2g}: one of the two ways is wrong")

    reference = cpu_of_some * _LOGICS / _TIMED
    row = {
        "agents": agents,
        "windows": len(ours.views),
        "logics": sum(map(len, groups)),
        "cpu_seconds": cpu,
        "reference_cpu_seconds": reference,
        "ratio": reference / cpu,
    }
    write_rows([row | describe_surroundings(())], RESULTS / "search.csv")


if __name__ == "__main__":
    typer.run(main)

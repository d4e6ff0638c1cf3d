"""What an agent knows when it writes its next logic, and the prompt for it (paper 4.3, Eq. 2).

An agent that sees only what its logic retrieved must guess which other news matters. So a ridge
that reads all articles of a window estimates how each of them would have changed its error.

What does not fit into ``backbone.context_length`` is left out in this order: the news that an agent
read least, recent history, peers. Its logic, its reward and the instruction always stay.

Shapes: A agents, P base models, B windows of the round, S sampled articles, H horizon.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from compevo_core.agents.decoders import ForecastExample, RetrievedArticle
from compevo_core.agents.linear_reader import FittedReader
from compevo_core.agents.prompts import Observation, Tokenizer, render_logic_prompt, tokenize_prompt
from compevo_core.agents.selection import forecast_error
from compevo_core.config.run import RunConfig
from compevo_core.errors import ConfigError

MOST_READ = 3  # titles that an agent sees when it rewrites its logic

_SAMPLED = 256  # unread articles of a round that are tried
_NO_LOGIC = "news"  # of a reader of all articles


def observe(
    logics: Sequence[str],
    rewards: Sequence[float],
    peers: Sequence[Sequence[int]],
    headlines: Sequence[Sequence[str]] = (),
    recent: str = "",
) -> list[Observation]:
    """Return what each agent knows of a round: its own logic, reward and news, and its peers."""
    return [
        Observation(
            agent,
            logics[agent],
            rewards[agent],
            [(peer, rewards[peer], logics[peer]) for peer in seen],
            recent=recent,
            headlines=headlines[agent] if headlines else (),
        )
        for agent, seen in enumerate(peers)
    ]


def fit_logic_prompt(
    observed: Observation, config: RunConfig, tokenizer: Tokenizer
) -> tuple[list[int], bool]:
    """Return the tokens of an agent's prompt, and whether news, history or peers were left out.

    ConfigError if own logic, own reward and instruction are too long by themselves.
    """
    # The soft prompt is read before the instruction.
    has_soft_prompt = config.evolution.update == "three-stage"
    limit = config.backbone.context_length - has_soft_prompt
    is_paraphrased = config.evolution.instruction == "paraphrased"

    for number, seen in enumerate(_drop_evidence(observed)):
        text = render_logic_prompt(seen, paraphrased=is_paraphrased, tokenizer=tokenizer)
        ids = tokenize_prompt(tokenizer, text)
        if len(ids) <= limit:
            return ids, number > 0

    raise ConfigError(
        f"backbone.context_length = {config.backbone.context_length} is too short: the "
        f"logic-update prompt of agent {observed.agent} needs {len(ids) + has_soft_prompt} tokens "
        "without news, history and peers; raise it"
    )


def list_most_read(news: Sequence[Sequence[RetrievedArticle]]) -> list[str]:
    """Return the titles that an agent read in most windows; on ties the better match first."""
    ranks: defaultdict[str, list[int]] = defaultdict(list)
    for articles in news:
        for rank, article in enumerate(articles):
            ranks[article.title].append(rank)
    return sorted(ranks, key=lambda title: (-len(ranks[title]), min(ranks[title])))[:MOST_READ]


def sample_peers(agents: int, exposed: int, rng: np.random.Generator) -> list[list[int]]:
    """Sample which other agents' logics each agent is shown."""
    count = min(exposed, agents - 1)
    if not count:
        return [[] for _ in range(agents)]

    # Sorted: the order of sampling must not change the prompt.
    others = [[j for j in range(agents) if j != i] for i in range(agents)]
    return [sorted(rng.choice(row, size=count, replace=False).tolist()) for row in others]


def _drop_evidence(seen: Observation) -> Iterator[Observation]:
    """Yield all that an agent knows, and then less and less of titles, history and peers."""
    for count in range(len(seen.headlines), 0, -1):
        yield dataclasses.replace(seen, headlines=seen.headlines[:count])
    for count in range(len(seen.unread), 0, -1):
        yield dataclasses.replace(seen, headlines=(), unread=seen.unread[:count])
    bare = dataclasses.replace(seen, headlines=(), unread=())
    if seen.recent:
        yield bare
    for count in range(len(seen.peers), -1, -1):
        yield dataclasses.replace(bare, recent="", peers=seen.peers[:count])


def list_best_unread(
    reader: FittedReader,
    row: int,
    examples: Sequence[ForecastExample],
    read: Sequence[Sequence[str]],
    values_BH: torch.Tensor,
    rng: np.random.Generator,
    count: int,
) -> list[tuple[str, float]]:
    """Return the titles that a local agent should have read, each with the change of its error.

    Of a sample of the articles that it did not read, in the windows that it has forecast.
    ``reader`` reads all articles.
    """
    views = [example.view for example in examples]
    member = reader.members[row]
    seen = reader.retriever.retrieve_for(member, _NO_LOGIC, views)
    unread = [(b, name) for b, names in enumerate(seen) for name in names if name not in read[b]]
    sampled = [unread[i] for i in rng.permutation(len(unread))[:_SAMPLED]]
    if not sampled:
        return []

    articles = reader.retriever.resolve([name for _, name in sampled])
    fit = reader.find(row, _NO_LOGIC)
    # The ridge reads the mean of a window's articles: one of them moves it by its share.
    reading_SH = np.stack(
        [
            fit.predict(examples[b].view, [article]) / len(seen[b])
            for (b, _), article in zip(sampled, articles, strict=True)
        ]
    )
    windows = [b for b, _ in sampled]
    truth_SH = torch.from_numpy(np.stack([examples[b].truth_H for b in windows]))
    values_SH = values_BH[windows].cpu().double()
    before_S, after_S = (
        forecast_error(values, truth_SH)
        for values in (values_SH, values_SH + torch.from_numpy(reading_SH))
    )
    changes = (after_S - before_S).tolist()

    best: dict[str, float] = {}
    for article, change in sorted(zip(articles, changes, strict=True), key=lambda pair: pair[1]):
        best.setdefault(article.title, change)
    return list(best.items())[:count]

"""What agents know when they rewrite their logics, o_i of Eq. 2, and the prompt that holds it.

What belongs here: observations, and what is left out of a logic-update prompt that is too long.
What does not: wording (``agents.prompts``), sampling (``agents.logic_writer``).

A prompt never exceeds ``backbone.context_length``. What does not fit is left out in this order: the
news that an agent read least, recent history, peers. The agent's own logic and reward, the
instruction and the cue always stay.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence

from compevo_core.agents.decoders import RetrievedArticle
from compevo_core.agents.prompts import PeerReport, render_logic_prompt
from compevo_core.agents.tokens import Tokenizer, tokenize_prompt
from compevo_core.config import RunConfig
from compevo_core.errors import ConfigError

MOST_READ = 3
"""titles that an agent sees when it rewrites its logic"""


@dataclasses.dataclass(frozen=True)
class Observation:
    """What the agents know when they write their next logics, o_i of Eq. 2.

    Attributes:
        logics: the logic each of A agents used in this round.
        rewards: the reward of each agent in this round (Eq. 3).
        peers: for each agent, the agents whose logic and reward it sees (decision 5).
        headlines: for each agent, the titles that it read most in the round, see
            :func:`list_most_read`; empty if it shall not see them. A process needs those of its
            local agents alone.
        recent: the history of the round's windows in words, see ``prompts.describe_recent``.
    """

    logics: list[str]
    rewards: list[float]
    peers: list[list[int]]
    headlines: Sequence[Sequence[str]] = ()
    recent: str = ""


@dataclasses.dataclass(frozen=True)
class LogicPrompt:
    """The logic-update prompt of one agent.

    Attributes:
        ids: its tokens.
        was_cut: whether news, history or peers were left out.
    """

    ids: list[int]
    was_cut: bool


def fit_logic_prompt(
    observation: Observation, agent: int, config: RunConfig, tokenizer: Tokenizer
) -> LogicPrompt:
    """Return an agent's prompt with as much of what it observed as fits.

    Raises:
        ConfigError: own logic, own reward and instruction alone are too long.
    """
    # The soft prompt is read before the instruction.
    has_soft_prompt = config.evolution.update == "three-stage"
    limit = config.backbone.context_length - has_soft_prompt

    for number, (titles, recent, peers) in enumerate(_drop_evidence(observation, agent)):
        text = render_logic_prompt(
            agent,
            observation.logics[agent],
            observation.rewards[agent],
            [PeerReport(i, observation.rewards[i], observation.logics[i]) for i in peers],
            recent=recent,
            headlines=titles,
            paraphrased=config.evolution.instruction == "paraphrased",
            tokenizer=tokenizer,
        )
        ids = tokenize_prompt(tokenizer, text)
        if len(ids) <= limit:
            return LogicPrompt(ids, was_cut=number > 0)

    raise ConfigError(
        f"backbone.context_length = {config.backbone.context_length} is too short: the "
        f"logic-update prompt of agent {agent} needs {len(ids) + has_soft_prompt} tokens without "
        "news, history and peers; raise it"
    )


def list_most_read(news: Sequence[Sequence[RetrievedArticle]], count: int = MOST_READ) -> list[str]:
    """Return the titles that an agent read in most windows; of two, the better match first.

    Args:
        news: what the agent retrieved for each window, best match first.
        count: most titles.
    """
    windows = Counter(article.title for articles in news for article in articles)
    best_rank: dict[str, int] = {}
    for articles in news:
        for rank, article in enumerate(articles):
            best_rank[article.title] = min(best_rank.get(article.title, rank), rank)

    return sorted(windows, key=lambda title: (-windows[title], best_rank[title]))[:count]


def _drop_evidence(
    observation: Observation, agent: int
) -> Iterator[tuple[list[str], str, list[int]]]:
    """Yield what an agent saw, titles, history and peers: first all of it, then ever less."""
    titles = list(observation.headlines[agent]) if observation.headlines else []
    recent = observation.recent
    peers = observation.peers[agent]

    for kept in range(len(titles), 0, -1):
        yield titles[:kept], recent, peers
    if recent:
        yield [], recent, peers
    for kept in range(len(peers), -1, -1):
        yield [], "", peers[:kept]

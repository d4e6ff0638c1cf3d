"""The judges of a deployment: the run's own backbone always, and the endpoint the settings name, if they name one.

What belongs here: settings -> judges. What does not: prompts and verdicts (``compevo_core.lud.judge``), HTTP
(``judge_transport``).
"""

from compevo_core.config import BackboneConfig
from compevo_core.errors import ConfigError
from compevo_core.lud.judge import EndpointJudge, Judge
from compevo_core.lud.measure import BackboneJudge
from compevo_pipeline.judges.openai_transport import endpoint_transport
from compevo_pipeline.settings import JudgeSettings, Settings


def judges_of(judge: JudgeSettings | None, backbone: BackboneConfig) -> list[Judge]:
    """The local judge, and the endpoint behind it where one is set: two judges whose agreement can be measured."""
    local: list[Judge] = [BackboneJudge(backbone)]
    return local if judge is None else [*local, _endpoint(judge)]


def endpoint_from_environment() -> EndpointJudge:
    """The endpoint that the environment names, for the command line.

    Raises:
        ConfigError: it names none.
    """
    judge = Settings.from_environment().judge
    if judge is None:
        raise ConfigError(
            "no judge's endpoint is set: set COMPEVO_JUDGE_URL and COMPEVO_JUDGE_MODEL, or use local"
        )
    return _endpoint(judge)


def _endpoint(judge: JudgeSettings) -> EndpointJudge:
    return EndpointJudge(
        model=judge.model, transport=endpoint_transport(judge.url, api_key=judge.key or None)
    )

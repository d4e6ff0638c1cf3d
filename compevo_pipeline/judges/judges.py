"""The judges of a deployment: a run's own backbone, a rule for logics with slots, an endpoint.

What belongs here: settings -> judges. What does not: prompts and verdicts
(``compevo_core.lud.judge``), HTTP (``judges.openai_transport``), the Dagster resource
(``resources.JudgeEndpoint``).
"""

import dagster as dg

from compevo_core.config import RunConfig
from compevo_core.errors import ConfigError
from compevo_core.lud.judge import EndpointJudge, Judge
from compevo_core.lud.measure import BackboneJudge
from compevo_core.lud.slot_judge import SlotJudge
from compevo_pipeline.judges.openai_transport import endpoint_transport
from compevo_pipeline.settings import JUDGE_KEY_VARIABLE, Settings


def build_judges(config: RunConfig, endpoint: EndpointJudge | None) -> list[Judge]:
    """Return every judge that a run can have: its backbone, the rule for slots, the endpoint.

    With two judges their agreement can be measured (Cohen's kappa).
    """
    judges: list[Judge] = [BackboneJudge(config.backbone)]
    if config.evolution.form == "slots":
        judges.append(SlotJudge())
    if endpoint is not None:
        judges.append(endpoint)
    return judges


def build_endpoint_judge(url: str, model: str, key: str = "") -> EndpointJudge:
    """Return the judge behind an OpenAI-compatible endpoint.

    Args:
        url: address up to and without ``/chat/completions``.
        model: name of the model as the endpoint knows it.
        key: API key; empty sends none.

    Raises:
        ConfigError: the address is none, or would send the key unencrypted.
    """
    return EndpointJudge(model=model, transport=endpoint_transport(url, api_key=key or None))


def read_endpoint_judge() -> EndpointJudge:
    """Return the endpoint that the environment names, for the command line.

    Raises:
        ConfigError: it names none.
    """
    judge = Settings.from_environment().judge
    if judge is None:
        raise ConfigError(
            "no judge's endpoint is set: set COMPEVO_JUDGE_URL and COMPEVO_JUDGE_MODEL, or use "
            "--judge local"
        )
    # The one other place that reads the key: the command line has no Dagster resource.
    key = dg.EnvVar(JUDGE_KEY_VARIABLE).get_value("") or ""
    return build_endpoint_judge(judge.url, judge.model, key)

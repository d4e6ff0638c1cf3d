"""The judges of logics that a deployment has: its run's backbone, a rule, and an endpoint.

What belongs here: settings -> judges. What does not: prompts and verdicts
(``compevo_core.paper.lud_judges``), asking an endpoint (``config.endpoints``).
"""

from compevo_core.config.run import RunConfig
from compevo_core.errors import ConfigError
from compevo_core.paper.lud_judges import EndpointJudge, Judge, LocalJudge, SlotJudge
from compevo_pipeline.config.endpoints import endpoint_transport
from compevo_pipeline.config.settings import Settings


def build_judges(config: RunConfig, endpoint: EndpointJudge | None) -> list[Judge]:
    """Return every judge that a run can have: its backbone, the rule for slots, the endpoint.

    With two judges their agreement can be measured (Cohen's kappa).
    """
    # Agents that read by a ridge have no backbone that could judge them.
    has_backbone = config.forecast.decoder != "linear"
    judges: list[Judge] = [LocalJudge(config.backbone)] if has_backbone else []
    if config.evolution.form == "slots":
        judges.append(SlotJudge())
    if endpoint is not None:
        judges.append(endpoint)
    return judges


def build_endpoint_judge(url: str, model: str, key: str = "") -> EndpointJudge:
    """Return the judge behind an OpenAI-compatible endpoint.

    ``url`` ends before ``/chat/completions``; an empty key sends none.
    """
    return EndpointJudge(model=model, transport=endpoint_transport(url, api_key=key or None))


def read_endpoint_judge() -> EndpointJudge:
    """Return the endpoint that the environment names, for the command line."""
    settings = Settings.from_environment()
    if not settings.judge_url:
        raise ConfigError(
            "no judge's endpoint is set: set COMPEVO_JUDGE_URL and COMPEVO_JUDGE_MODEL, or use "
            "--judge local"
        )
    return build_endpoint_judge(
        settings.judge_url, settings.judge_model, settings.judge_key.get_secret_value()
    )

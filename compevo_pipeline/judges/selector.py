"""The endpoint that mutates logics in the system ``mae-gpt``, where the settings name one.

What belongs here: settings -> transport. What does not: what is asked
(``compevo_core.agents.prompt_mutation``), HTTP (``judges.openai_transport``). The address and the
key are the judge's: a deployment has one endpoint, and the run's settings name the model.
"""

from compevo_core.chat_endpoint import ENDPOINT, Transport
from compevo_core.config import RunConfig
from compevo_core.errors import ConfigError
from compevo_pipeline.judges.openai_transport import endpoint_transport
from compevo_pipeline.settings import JUDGE_KEY_VARIABLE, Settings


def read_selector(config: RunConfig) -> Transport | None:
    """Return what asks the endpoint, or None where the backbone mutates or nothing does.

    Raises:
        ConfigError: the settings name an endpoint, and the environment has no address.
    """
    if not config.evolution.selector.startswith(ENDPOINT):
        return None

    judge = Settings.from_environment().judge
    if judge is None:
        raise ConfigError(
            f"evolution.selector = {config.evolution.selector!r} needs an endpoint: set "
            "COMPEVO_JUDGE_URL and COMPEVO_JUDGE_MODEL, or leave the setting out"
        )
    # Dagster reads the key from the environment; trainings without an endpoint do not load it.
    import dagster as dg

    key = dg.EnvVar(JUDGE_KEY_VARIABLE).get_value("") or ""
    return endpoint_transport(judge.url, api_key=key or None)

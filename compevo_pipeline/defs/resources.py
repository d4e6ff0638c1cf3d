"""Dagster resources: the deployment in the mode of a run, and the judge.

What belongs here: opening what ``settings`` names, and entering secrets. What does not: reading
other variables of the environment (``config.settings``), launchers (``defs.launchers``). The mode
is run configuration of the ``workspace`` resource, so that one choice holds for a whole run.
"""

from enum import StrEnum
from typing import TYPE_CHECKING, Self

import dagster as dg
from pydantic import Field

from compevo_core.paper.lud_judges import EndpointJudge
from compevo_pipeline.config.endpoints import build_endpoint_judge
from compevo_pipeline.config.settings import JUDGE_KEY_VARIABLE, Settings
from compevo_pipeline.launchers.process import end_with_run
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.work.deployment import Deployment

# Dagster offers an enumeration by its names; to a type checker they are texts.
if TYPE_CHECKING:
    ModeName = str
else:
    ModeName = StrEnum("ModeName", {mode.value: mode.value for mode in Mode})


class Workspace(dg.ConfigurableResource[Deployment]):
    """The deployment in the mode of a run; assets receive the plain :class:`Deployment`."""

    mode: ModeName | None = Field(
        default=None,
        description="where data comes from; left out: as the deployment says (COMPEVO_MODE)",
    )
    settings: dg.ResourceDependency[Settings]

    def create_resource(self, context: dg.InitResourceContext) -> Deployment:
        """Open the deployment, and let the process of a step end with its run."""
        end_with_run()
        return Deployment(settings=self.settings, mode=Mode(self.mode) if self.mode else None)


class JudgeEndpoint(dg.ConfigurableResource[None]):
    """An OpenAI-compatible endpoint that rates logic updates; empty where none is set."""

    url: str = Field(default="", description="address, without /chat/completions")
    model: str = Field(default="", description="name of the model as the endpoint knows it")
    # Out of repr: an error message that prints the resource must not print the key.
    key: str = Field(default="", repr=False, description="API key; empty sends none")

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Return the resource of a deployment.

        The key stays an environment variable until a step runs. Run configuration, the UI and the
        event log hold the variable's name, never its value.
        """
        url, model = settings.judge_url, settings.judge_model
        if not url:
            return cls()
        if not settings.judge_key.get_secret_value():
            return cls(url=url, model=model)
        return cls(url=url, model=model, key=dg.EnvVar(JUDGE_KEY_VARIABLE))

    def create_judge(self) -> EndpointJudge | None:
        """Return the judge behind the endpoint, or None where none is set."""
        return build_endpoint_judge(self.url, self.model, self.key) if self.url else None

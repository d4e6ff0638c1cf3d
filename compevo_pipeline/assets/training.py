"""``models/compevo``: one trained population a data set, in a process of its own.

What belongs here: resolving the configuration, starting the launcher, showing the run. What does not: training
(``compevo_core.training.trainer``), processes (``launch``). Materializing again with the same configuration and data returns the
finished run; after a crash it goes on from the newest checkpoint.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from compevo_core.config import RunConfig
from compevo_core.data.window import WindowSet
from compevo_pipeline.assets import metadata as show
from compevo_pipeline.assets.news import embeddings
from compevo_pipeline.failures import source_failures
from compevo_pipeline.launchers.worker import TrainJob
from compevo_pipeline.partitions import DATASETS, datasets
from compevo_pipeline.resources import Launchers, Workspace
from compevo_pipeline.storage.runs import run_name, set_current

GPU_POOL = "gpu"


class TrainConfig(dg.Config):
    """What to train; empty fields take the preset's values."""

    preset: str = Field(
        default="",
        description="tiny, demo, default, paper or a .toml file; empty: the deployment's",
    )
    rounds: int = Field(default=0, description="stop after this many rounds; 0: as the preset says")
    seed: int = Field(default=-1, description="seed of every generator; -1: as the preset says")
    overrides: dict[str, Any] = Field(
        default={}, description='further settings, e.g. {"population.agents": 3}'
    )
    launcher: str = Field(default="process", description="process, torchrun or kubernetes")
    processes: int = Field(default=1, description="processes under torchrun")
    resume: bool = Field(
        default=True, description="false starts over instead of going on from the newest checkpoint"
    )

    def resolve(self, default_preset: str) -> RunConfig:
        """The run configuration."""
        overrides = dict(self.overrides)
        if self.rounds > 0:
            overrides["run.rounds"] = self.rounds
        if self.seed >= 0:
            overrides["run.seed"] = self.seed
        return RunConfig.preset(self.preset or default_preset).with_overrides(overrides)


@dg.asset(
    key=["models", "compevo"],
    deps=[*(dg.AssetKey(["windows", dataset]) for dataset in DATASETS), embeddings],
    partitions_def=datasets,
    group_name="models",
    description="A trained CompEvo population: adapters, logics, gates, prior, scaler; sealed with a hash.",
    kinds={"pytorch", "huggingface"},
    owners=show.OWNERS,
    pool=GPU_POOL,
)
def compevo(
    context: dg.AssetExecutionContext,
    config: TrainConfig,
    workspace: Workspace,
    launchers: dg.ResourceParam[Launchers],
) -> dg.MaterializeResult[Any]:
    """Trains the population of the partition's data set."""
    dataset, layout = context.partition_key, workspace.layout
    with source_failures(retry=False):
        resolved = config.resolve(workspace.preset)
        windows = WindowSet.read(layout.windows(dataset))
        name = run_name(f"compevo-{dataset}", resolved, windows.hash)
        job = train_job(workspace, dataset, resolved, name, resume=config.resume)
        reported = launchers.get(config.launcher, config.processes).launch(context, [job])
    set_current(layout, dataset, name)
    return dg.MaterializeResult(
        metadata={**reported, **describe(layout.run(name), resolved)},
        data_version=dg.DataVersion(f"{resolved.hash}-{windows.hash[:16]}"),
    )


def train_job(
    workspace: Workspace, dataset: str, config: RunConfig, name: str, *, resume: bool
) -> TrainJob:
    """The job of one training; leaves the resolved configuration in its run folder."""
    out = workspace.layout.run(name)
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(
        json.dumps(config.to_dict(), indent=1, sort_keys=True), encoding="utf-8"
    )
    return TrainJob(
        config=config.to_dict(),
        windows=str(workspace.layout.windows(dataset)),
        news=str(workspace.layout.news_pool),
        out=str(out),
        resume=resume,
    )


def read_rounds(run: Path) -> list[dict[str, Any]]:
    """The records of a run's rounds."""
    return [
        json.loads(line) for line in (run / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    ]


def describe(run: Path, config: RunConfig) -> dict[str, Any]:
    """What the UI shows of a finished run: losses, rewards, weights, final logics."""
    rounds = read_rounds(run)
    last = rounds[-1]
    logics = "\n".join(
        f"{i}. {' '.join(str(text).split())}" for i, text in enumerate(last["logics"])
    )
    return {
        "run_folder": show.path(run),
        "config_hash": config.hash,
        "config": dg.MetadataValue.json(config.to_dict()),
        "rounds": len(rounds),
        "loss": float(last["loss"]),
        "loss_plot": show.plot(
            lambda axes: _lines(axes, rounds, ("loss", "loss_pred", "loss_pg")), "Losses by round"
        ),
        "reward_plot": show.plot(
            lambda axes: _agents(axes, rounds, "rewards"), "Reward of each agent by round"
        ),
        "weight_plot": show.plot(
            lambda axes: _agents(axes, rounds, "weights"), "Weight of each agent by round"
        ),
        "logics": dg.MetadataValue.md(logics),
    }


def _lines(axes: Any, rounds: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    for name in names:
        axes.plot(
            [r["round"] + 1 for r in rounds], [r[name] for r in rounds], label=name, linewidth=1
        )
    _finish(axes)


def _agents(axes: Any, rounds: Sequence[Mapping[str, Any]], name: str) -> None:
    for agent in range(len(rounds[0][name])):
        axes.plot(
            [r["round"] + 1 for r in rounds],
            [r[name][agent] for r in rounds],
            label=f"agent {agent}",
            linewidth=1,
        )
    _finish(axes)


def _finish(axes: Any) -> None:
    axes.set_xlabel("round", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.legend(fontsize=7, frameon=False, ncols=2)

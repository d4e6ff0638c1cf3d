"""``models/compevo/<dataset>``: one trained population a data set, in a process of its own.

What belongs here: resolving the configuration, starting the launcher, showing the run. What does
not: training (``compevo_core.training.trainer``), processes (``launchers``). Materializing again
with the same configuration, data and code returns the finished run; after a crash, training resumes
from the newest checkpoint.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from compevo_core.config import RunConfig
from compevo_core.data.window import WindowSet
from compevo_core.training.round_record import RoundRecord
from compevo_core.training.run_folder import RunFolder
from compevo_pipeline.asset_keys import NEWS_EMBEDDINGS, model_key, windows_key
from compevo_pipeline.assets import metadata
from compevo_pipeline.assets.definition import GPU_POOL, OWNERS, TRAINING_CODE, code_version
from compevo_pipeline.assets.training_config import TrainConfig, prepare_job
from compevo_pipeline.embedded_news import write_news
from compevo_pipeline.failures import translate_errors
from compevo_pipeline.launchers.kubernetes import PodClient
from compevo_pipeline.markdown import escape_markdown
from compevo_pipeline.resources import Launchers, Workspace
from compevo_pipeline.sketch import sketch_validation
from compevo_pipeline.storage.runs import (
    hash_model,
    make_run_name,
    read_code_version,
    set_current_run,
    write_code_version,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def build_model_asset(dataset: str) -> dg.AssetsDefinition:
    """Return the trained population of one data set."""
    version = code_version(*TRAINING_CODE)

    @dg.asset(
        key=model_key(dataset),
        deps=[windows_key(dataset), NEWS_EMBEDDINGS],
        group_name="models",
        description=(
            f"A CompEvo population trained on {dataset}: adapters, logics, gates, prior, scaler; "
            "sealed with a hash."
        ),
        kinds={"pytorch", "huggingface"},
        owners=OWNERS,
        code_version=version,
        pool=GPU_POOL,
        tags={"dataset": dataset},
        op_tags={"dataset": dataset},
        config_schema=TrainConfig.schema_of_launch(),
    )
    def _model(
        context: dg.AssetExecutionContext,
        workspace: Workspace,
        launchers: dg.ResourceParam[Launchers],
        pod_client: dg.ResourceParam[PodClient],
    ) -> dg.MaterializeResult[Any]:
        return _train(context, dataset, version, workspace, launchers, pod_client)

    return _model


def _train(
    context: dg.AssetExecutionContext,
    dataset: str,
    version: str,
    workspace: Workspace,
    launchers: Launchers,
    pod_client: PodClient,
) -> dg.MaterializeResult[Any]:
    """Train the population of a data set by the code of a version."""
    config = TrainConfig.read(context)
    layout = workspace.layout

    with translate_errors(retry=False):
        resolved = config.resolve(workspace.preset_for(dataset))
        folder = layout.windows(dataset)
        windows = WindowSet.read(folder)
        # Named by configuration and data: the same training finds its own checkpoints.
        name = make_run_name(f"compevo-{dataset}", resolved, windows)

        news = write_news(workspace, resolved.news.encoder, windows, log=context.log)
        run: Path = layout.run(name)
        chosen = _refuse_other_code(run, version, config, context)
        is_trained_now = not (RunFolder(run).is_finished and chosen.resume)

        job = prepare_job(workspace, folder, news, resolved, name, chosen)
        launcher = launchers.get(config.launcher, config.processes, pod_client)
        reported = launcher.launch(context, [job])
        if is_trained_now:
            write_code_version(run, version)
        model_hash = hash_model(run)

    # Only a finished run becomes the one that is scored: a failed launch raises above.
    set_current_run(layout, dataset, name)
    return dg.MaterializeResult(
        # What the process reported of itself (hashes, seconds, memory) and what the folder shows.
        metadata=_describe(run, resolved) | {"mode": workspace.data_mode.value} | dict(reported),
        # Another training is another model, whatever it was made of: its scores are stale then.
        data_version=dg.DataVersion(model_hash),
    )


def _refuse_other_code(
    run: Path, version: str, config: TrainConfig, context: dg.AssetExecutionContext
) -> TrainConfig:
    """Return the launch, to start over where other code than today's finished the run."""
    made_by = read_code_version(run) if RunFolder(run).is_finished else None
    # A run of the command line keeps no version, and is taken as it is.
    if made_by is None or made_by == version:
        return config

    context.log.warning(
        f"{run.name} was trained by version {made_by} of the code, which is {version} now: it is "
        "trained anew"
    )
    return config.model_copy(update={"resume": False})


def _describe(run: Path, config: RunConfig) -> dict[str, Any]:
    """Return losses, rewards, weights and final logics of a finished run."""
    rounds = RunFolder(run).read_rounds()
    # The loss of the last round; validation may have chosen an earlier one for the model.
    last = rounds[-1]
    logics = "\n".join(f"{i}. {escape_markdown(text)}" for i, text in enumerate(last.logics))

    return {
        # What one looks for comes first: the UI keeps the order.
        "validation_mae_by_round": sketch_validation(rounds),
        "logics": dg.MetadataValue.md(logics),
        "rounds": len(rounds),
        "loss": last.loss,
        "run_folder": metadata.link_path(run),
        "config_hash": config.hash,
        "config": dg.MetadataValue.json(config.to_dict()),
        "loss_plot": _plot_losses(rounds),
        "reward_plot": _plot_by_agent(
            rounds, lambda record: record.rewards, "Reward of each agent by round"
        ),
        "weight_plot": _plot_by_agent(
            rounds, lambda record: record.weights, "Weight of each agent by round"
        ),
    }


def _plot_losses(rounds: Sequence[RoundRecord]) -> dg.MetadataValue[Any]:
    numbers = [record.round + 1 for record in rounds]

    def draw(axes: "Axes") -> None:
        axes.plot(numbers, [record.loss for record in rounds], label="total", linewidth=1)
        axes.plot(numbers, [record.loss_pred for record in rounds], label="forecast", linewidth=1)
        axes.plot(numbers, [record.loss_pg for record in rounds], label="policy", linewidth=1)
        _label_axes(axes)

    return metadata.render_plot(draw, "Losses by round")


def _plot_by_agent(
    rounds: Sequence[RoundRecord], values: Callable[[RoundRecord], list[float]], title: str
) -> dg.MetadataValue[Any]:
    numbers = [record.round + 1 for record in rounds]

    def draw(axes: "Axes") -> None:
        for agent in range(len(values(rounds[0]))):
            line = [values(record)[agent] for record in rounds]
            axes.plot(numbers, line, label=f"agent {agent}", linewidth=1)
        _label_axes(axes)

    return metadata.render_plot(draw, title)


def _label_axes(axes: "Axes") -> None:
    axes.set_xlabel("round", fontsize=metadata.LABEL_POINTS)
    axes.tick_params(labelsize=metadata.TICK_POINTS)
    axes.legend(fontsize=metadata.TICK_POINTS, frameon=False, ncols=2)

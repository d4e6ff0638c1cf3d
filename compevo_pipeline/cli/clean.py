"""``compevo clean``."""

from datetime import UTC, datetime
from typing import Annotated

import typer


def clean(
    keep: Annotated[int, typer.Option(min=1, help="Finished runs of one name that stay.")] = 3,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
) -> None:
    """Remove old runs, checkpoints of finished ones, and what killed processes left."""
    from compevo_pipeline.settings import Settings
    from compevo_pipeline.storage.cleaning import clean as clean_folders

    settings = Settings.from_environment()
    layout = settings.layout(settings.mode)
    removed = clean_folders(layout, datetime.now(UTC), keep=keep, dry=dry_run)

    for one in removed:
        name = one.path.relative_to(layout.root)
        typer.echo(f"{name}: {one.size / 2**20:.1f} MB, {one.reason}")
    size = sum(one.size for one in removed) / 2**20
    typer.echo(f"{len(removed)} {'to remove' if dry_run else 'removed'}, {size:.1f} MB")

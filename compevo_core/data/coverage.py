"""What windows cover: entities and years of every split, and how much news there is to choose.

What belongs here: counts for manifests and tables. What does not: cutting (``data.cutting``), the
plan (``data.splits``), any score.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from compevo_core.data.view import SPLITS, WindowView

CHOICE_SIZES = (1, 3, 5)
"""Articles k that an agent reads: a logic has a choice where a window has more candidates."""

Coverage = dict[str, dict[str, dict[str, int]]]
NewsChoice = dict[str, dict[str, float]]


def count_coverage(views: Iterable[WindowView]) -> Coverage:
    """Return the number of windows by split, entity and year of the target day.

    An entity that is in any split stands under every split, with no year where it has no window:
    what is missing is said.
    """
    counts = Counter(
        (view.split, view.entity, str(view.calendar.target_date.year)) for view in views
    )
    splits = [split for split in SPLITS if any(key[0] == split for key in counts)]
    entities = sorted({entity for _, entity, _ in counts})

    coverage: Coverage = {split: {entity: {} for entity in entities} for split in splits}
    for (split, entity, year), count in sorted(counts.items()):
        coverage[split][entity][year] = count
    return coverage


def find_missing_years(coverage: Coverage) -> list[str]:
    """Return a line for every year of a split that some entities have and another lacks."""
    lines = []
    for split, by_entity in coverage.items():
        years = sorted({year for by_year in by_entity.values() for year in by_year})
        for entity, by_year in by_entity.items():
            missing = [year for year in years if year not in by_year]
            if missing:
                lines.append(f"{split}: {entity} has no window in {', '.join(missing)}")
    return lines


def measure_news_choice(views: Sequence[WindowView]) -> NewsChoice:
    """Return, by split, the mean number of candidates and the shares of windows with a choice.

    ``more_than_<k>`` is the share of windows with more candidates than k, for :data:`CHOICE_SIZES`:
    in the others every logic reads the same articles.
    """
    choice: NewsChoice = {}
    for split in SPLITS:
        counts = [len(view.candidate_ids) for view in views if view.split == split]
        if not counts:
            continue

        choice[split] = {"windows": len(counts), "mean_candidates": sum(counts) / len(counts)}
        for size in CHOICE_SIZES:
            choice[split][f"more_than_{size}"] = share_with_choice(counts, size)
    return choice


def share_with_choice(candidates: Sequence[int], articles: int) -> float:
    """Return the share of windows with more candidates than an agent reads.

    Args:
        candidates: number of candidates of each window.
        articles: how many an agent reads.
    """
    return sum(count > articles for count in candidates) / len(candidates) if candidates else 0.0

"""Named budgets: what every method of a benchmark may spend.

What belongs here: the names and their numbers. What does not: how a method spends them.

A row names its budget; rows of different budgets are different measurements.
"""

from dataclasses import dataclass

from compevo_core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a fit may spend.

    Attributes:
        name: what rows say.
        meaning: the same in words, for tables.
        passes: most passes over the train windows.
        patience: passes without a better validation loss after which a fit ends.
        pass_windows: most train windows of a pass, drawn anew for each; None: all.
        val_windows: most validation windows that a pass is measured on; None: all.
        learning_rates: rates of which validation chooses one; a single one is taken as it is.
        tuning_passes: passes that each rate is tried for, with seed 0.
        rounds: updates of a language model with adapters.
        round_windows: train windows of such an update.
        most_seeds: seeds of a method that has more; None: its own number.
    """

    name: str
    meaning: str
    passes: int
    patience: int
    pass_windows: int | None
    learning_rates: tuple[float, ...]
    tuning_passes: int
    rounds: int
    round_windows: int
    val_windows: int | None = None
    most_seeds: int | None = None

    def choose_seeds(self, seeds: int) -> range:
        """Return the seeds of a method that has ``seeds`` of them in a full table."""
        return range(min(seeds, self.most_seeds or seeds))


STANDARD = Budget(
    name="standard",
    meaning=(
        "networks: learning rate 0.001, at most 40 passes over all train windows; "
        "language models: 316 updates of 8 windows"
    ),
    passes=40,
    patience=6,
    pass_windows=None,
    learning_rates=(1e-3,),
    tuning_passes=0,
    rounds=316,
    round_windows=8,
)

BUDGETS: dict[str, Budget] = {
    budget.name: budget
    for budget in (
        Budget(
            name="quick",
            meaning=(
                "one seed; networks: learning rate 0.001, 2 passes of at most 256 windows; "
                "language models: 4 updates of 4 windows"
            ),
            passes=2,
            patience=2,
            pass_windows=256,
            val_windows=256,
            learning_rates=(1e-3,),
            tuning_passes=0,
            rounds=4,
            round_windows=4,
            most_seeds=1,
        ),
        STANDARD,
        Budget(
            name="tuned",
            meaning=(
                "networks: learning rate 0.0003, 0.001 or 0.003, by the loss on validation after "
                "4 passes with seed 0; at most 80 passes of at most 256 windows, ended by the loss "
                "on at most 256 validation windows; language models: 316 updates of 8 windows"
            ),
            passes=80,
            patience=10,
            pass_windows=256,
            val_windows=256,
            learning_rates=(3e-4, 1e-3, 3e-3),
            tuning_passes=4,
            rounds=316,
            round_windows=8,
        ),
        Budget(
            name="small",
            meaning=(
                "networks: learning rate 0.001, at most 10 passes of at most 1024 windows; "
                "language models: 40 updates of 8 windows"
            ),
            passes=10,
            patience=3,
            pass_windows=1024,
            learning_rates=(1e-3,),
            tuning_passes=0,
            rounds=40,
            round_windows=8,
        ),
    )
}
"""Every budget by its name."""


def find_budget(name: str) -> Budget:
    """Return a budget.

    Raises:
        ConfigError: the name is unknown.
    """
    if name not in BUDGETS:
        raise ConfigError(f"no budget {name!r}; known: {', '.join(BUDGETS)}")
    return BUDGETS[name]

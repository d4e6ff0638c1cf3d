"""A synthetic long CSV of the 18 Bitcoin variables over 640 days, for the sample mode.

What belongs here: making the bytes. What does not: reading them (the source's parser does,
with the real file's parser).

The price is a seeded random walk; the other variables follow it, a weekly rhythm or a walk of their
own, at the magnitudes of 2019 and 2020. Nothing in it is a measurement.
"""

from datetime import date, timedelta

import numpy as np

FIRST_DAY = date(2019, 5, 1)
DAYS = 640
"""A 70/10/20 split of 48-step windows with two embargoes needs about 630."""

_SEED = 21_000_000
_DIFFICULTY_DAYS = 14  # the network adjusts its difficulty every two weeks

_LEVELS: dict[str, tuple[float, float, float, float]] = {
    "active_addresses": (750_000, 0.4, 0.04, 0.10),
    "av_transaction_value": (9_000, 0.8, 0.15, 0.05),
    "block_size": (800_000, 0.0, 0.04, 0.05),
    "confirmation_time": (10, 0.0, 0.08, 0.00),
    "fee_reward": (3.0, 0.9, 0.20, 0.08),
    "google_trends": (12, 1.1, 0.15, 0.04),
    "hashrate": (1.1e20, 0.3, 0.08, 0.00),
    "market_cap": (1.3e11, 1.0, 0.00, 0.00),
    "median_transaction_size": (0.5, 1.2, 0.25, 0.12),
    "median_transaction_value": (180, 0.7, 0.12, 0.06),
    "mining_profitability": (0.15, 0.9, 0.05, 0.00),
    "price": (7_200, 1.0, 0.00, 0.00),
    "send_usd": (5.0e9, 1.0, 0.20, 0.15),
    "sent_addresses": (560_000, 0.3, 0.05, 0.10),
    "top_100_percent": (14.5, 0.0, 0.005, 0.00),
    "transactions": (310_000, 0.1, 0.05, 0.08),
    "tweets": (25_000, 0.9, 0.15, 0.05),
}
"""Id -> level, power of the price it follows, size of its daily noise and of its weekly rhythm."""


def make_long_csv() -> tuple[str, bytes]:
    """Return name and bytes of the CSV, the same on every call."""
    generator = np.random.default_rng(_SEED)
    days = np.arange(DAYS)
    price = np.exp(np.cumsum(generator.normal(0.003, 0.032, DAYS)))
    weekly = np.cos(2 * np.pi * (days + FIRST_DAY.weekday()) / 7)

    # Columns are drawn in the order of their names: another order gives other bytes.
    columns = {}
    for name, (level, power, noise, rhythm) in sorted(_LEVELS.items()):
        daily = np.exp(generator.normal(0.0, noise, DAYS))
        values = level * price**power * daily * (1.0 + rhythm * weekly)
        columns[name] = [_round(value) for value in values]
    columns["difficulty"] = [
        _round(1.4e13 * price[day - day % _DIFFICULTY_DAYS] ** 0.3) for day in days
    ]

    lines = [",TIME,ID,VALUE"]
    for name in sorted(columns):
        for day, value in enumerate(columns[name]):
            lines.append(f"{len(lines) - 1},{FIRST_DAY + timedelta(days=day)},{name},{value!r}")
    return "bitcoin_daily.csv", ("\n".join(lines) + "\n").encode()


def _round(value: float) -> float:
    """Round to six significant digits."""
    return float(f"{value:.6g}")

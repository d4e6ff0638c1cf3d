"""A small made-up experiment for the report's tests: rows, one run, two panels. All invented, all fixed."""

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from compevo_core.report.inputs import ReportInputs, RunRecord
from compevo_core.report.panels import ForecastPanel, write_panels
from compevo_core.report.rows import RESULT_SCHEMA

NOW = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)
REGIONS = ("NSW1", "QLD1", "SA1", "TAS1", "VIC1")
CONFIG_HASH = "ccompevo" * 2
HOSTILE = "<script>alert('news')</script> \"Heat & wind\" | pipe"
MAE = {"compevo": 198.4, "persistence": 291.2, "calendar-ridge": 205.3, "gbm": 180.1}
MAE_2026 = {"compevo": 226.0, "persistence": 318.2, "calendar-ridge": 226.0, "published": 126.3}
VARIANTS = {
    "compevo": 212.0,
    "simplified-logic": 215.1,
    "uniform-weights": 213.3,
    "no-diversity": 211.2,
    "no-pruning": 212.4,
    "no-grpo": 214.9,
}
LOGICS = (
    "Read heat warnings first, then plant outages; ignore prices.",
    "Look for public events and school terms that move the evening peak.",
    "Prefer wind and storm reports for the south; lower demand when rooftop sun is strong.",
)


def row(method: str, mae: float, **changes: Any) -> dict[str, Any]:
    """A result row with plausible values around ``mae``."""
    base: dict[str, Any] = dict.fromkeys(RESULT_SCHEMA)
    base |= {
        "experiment": "main",
        "method": method,
        "dataset": "electricity",
        "split": "test",
        "subset": "n2f-test-100",
        "entity": "pooled",
        "n_windows": 100,
        "n_points": 4800,
        "n_masked": 0,
        "seed": 0,
        "config_hash": f"c{method}" * 2,
        "data_hash": "d41d8cd98f00",
        "artifact_hash": "0a4b55a8d778",
        "commit": "1234567890ab",
        "device": "cpu",
        "seconds": 12.5,
        "backbone": "SmolLM2-135M-Instruct",
        "knowledge_cutoff": "2024-11",
        "possibly_memorised": True,
        "leaky": False,
        "synthetic": False,
        "parse_failure_rate": 0.0,
        "mape_skipped": 3,
        "mape_threshold": 50.0,
        "mae": mae,
        "mse": mae * mae * 2.4,
        "rmse": mae * math.sqrt(2.4),
        "mape_pct": mae / 40,
        "wape_pct": mae / 52,
        "mase": mae / 290,
        "unit": "MW",
    }
    return base | changes


def rows() -> pl.DataFrame:
    """Test set, leakage window and ablation, pooled and by region."""
    made = []
    for subset, table in (("n2f-test-100", MAE), ("inference-2026-100", MAE_2026)):
        for method, mae in table.items():
            made.append(row(method, mae, subset=subset))
            made += [
                row(method, mae * factor, subset=subset, entity=region, n_windows=20, n_points=960)
                for region, factor in zip(REGIONS, (1.6, 1.3, 0.5, 0.2, 1.4), strict=True)
            ]
    made += [row(variant, mae, experiment="ablation", subset="test") for variant, mae in VARIANTS.items()]
    return pl.DataFrame(made, schema=RESULT_SCHEMA)


def rounds(count: int = 24, agents: int = 3) -> list[dict[str, Any]]:
    """Rounds as the trainer writes them."""
    rng = np.random.default_rng(7)
    fitness, regret = np.full(agents, -0.4), np.zeros(agents)
    made = []
    for number in range(count):
        reward = -0.15 - 0.3 * np.exp(-number / 8) - 0.04 * np.arange(agents) + rng.normal(0, 0.02, agents)
        fitness, gap = 0.9 * fitness + 0.1 * reward, np.abs(rng.normal(0, 0.02, agents))
        regret = regret + gap
        weights = np.exp(fitness / 0.5) / np.exp(fitness / 0.5).sum()
        made.append(
            {
                "round": number,
                "epoch": number // 12,
                "seconds": 9.0,
                "eta_seconds": 9.0 * (count - number),
                "loss": float(-reward.mean()),
                "loss_pred": float(-reward.max()),
                "loss_pg": 0.02 * math.cos(number),
                "loss_div": 1.5 * math.exp(-number / 10),
                "loss_prune": 3.0 - 0.02 * number,
                "kl": 0.001 * number,
                "clip_fraction": 0.01,
                "grad_norm": 1.0 + 0.1 * math.sin(number),
                "weight_entropy": float(-(weights * np.log(weights)).sum()),
                "val_mae_scaled": float(-reward.max()) if number % 6 == 5 else None,
                "val_prior_mae_scaled": 0.21 if number % 6 == 5 else None,
                "rewards": reward.tolist(),
                "fitness": fitness.tolist(),
                "weights": weights.tolist(),
                "gates": [1.0 - 0.01 * number] * agents,
                "logics": [f"{LOGICS[a % 3]} (round {number})" for a in range(agents)],
                "candidates": ["x"] * agents,
                "equal_groups": int(number % 9 == 0),
                "best_response_gap": gap.tolist(),
                "regret": regret.tolist(),
                "gradient_conflict": float(np.cos(number / 5) * math.exp(-number / 20)),
                "unique_news": [4] * agents,
            }
        )
    made[-1]["logics"][0] = HOSTILE
    return made


def panel(entity: str = "NSW1", **changes: Any) -> ForecastPanel:
    """One half-hourly window with a gap in the truth."""
    rng = np.random.default_rng(len(entity))
    shape = 7500 + 1300 * np.sin(np.linspace(0, 2 * np.pi, 48) - 1.9) + rng.normal(0, 60, 48)
    truth = [float(v) for v in shape + 250]
    truth[30] = math.nan
    forecasts = {
        "compevo": (shape + 160).tolist(),
        "calendar-ridge": (shape + 40).tolist(),
        "persistence": shape.tolist(),
    }
    values: dict[str, Any] = {
        "window_id": f"w-{entity}",
        "dataset": "electricity",
        "subset": "n2f-test-100",
        "entity": entity,
        "unit": "MW",
        "origin_utc": datetime(2021, 1, 24, 14, tzinfo=UTC),
        "step_minutes": 30,
        "history": shape.tolist(),
        "truth": truth,
        "forecasts": forecasts,
        "news": [("2021-01-24", HOSTILE), ("2021-01-23", "Sydney swelters: forty degrees expected")],
    }
    return ForecastPanel(**(values | changes))


def run() -> RunRecord:
    """A run with two panels."""
    config = {
        "forecast": {"prior": "calendar-ridge", "decoder": "head"},
        "backbone": {"spec": "packaged:smollm2-135m"},
        "population": {"rank": 16},
        "grpo": {"group_size": 8},
    }
    return RunRecord(
        name="electricity",
        config=config,
        summary={"config_hash": CONFIG_HASH},
        rounds=rounds(),
        panels=(panel(), panel("QLD1", news=())),
    )


def inputs(**changes: Any) -> ReportInputs:
    """Everything a full report shows."""
    values: dict[str, Any] = {
        "mode": "archive",
        "generated_at": NOW,
        "rows": rows(),
        "runs": (run(),),
        "configs": {CONFIG_HASH: run().config},
        "checks": [
            ("artifact hash unchanged by 2026 inference", True, "0a4b55a8d778 before and after"),
            ("every article older than its origin", False, "1 of 500 articles is later: w-NSW1"),
        ],
        "paired": [
            {
                "dataset": "electricity",
                "subset": "n2f-test-100",
                "method_a": "compevo",
                "method_b": "calendar-ridge",
                "n": 100,
                "p_value": 0.031,
            }
        ],
    }
    return ReportInputs(**(values | changes))


def write_run(folder: Path) -> Path:
    """A run folder on disk."""
    folder.mkdir(parents=True)
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(run().config))
    (folder / "metrics.json").write_text(json.dumps(run().summary))
    (folder / "rounds.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in rounds(6)))
    write_panels(folder / "panels.jsonl", [panel()])
    return folder

"""A small made-up experiment for the report's tests: rows, one run, two panels. All invented, all fixed."""

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from compevo_core.evaluation.panels import ForecastPanel, write_panels
from compevo_core.report.inputs import ReportInputs, RunRecord
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
    made += [
        row(variant, mae, experiment="ablation", subset="test") for variant, mae in VARIANTS.items()
    ]
    return pl.DataFrame(made, schema=RESULT_SCHEMA)


def rounds(count: int = 24, agents: int = 3) -> list[dict[str, Any]]:
    """Rounds as the trainer writes them."""
    rng = np.random.default_rng(7)
    fitness, regret = np.full(agents, -0.4), np.zeros(agents)
    made = []
    for number in range(count):
        reward = (
            -0.15
            - 0.3 * np.exp(-number / 8)
            - 0.04 * np.arange(agents)
            + rng.normal(0, 0.02, agents)
        )
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
                "group_regret": regret.tolist(),
                "regret": (0.05 * np.sqrt(number + 1) * np.arange(1, agents + 1)).tolist(),
                "fixed_rewards": [[-0.2, -0.3]] * agents,
                "played_rewards": [-0.25] * agents,
                "gradient_conflict": float(np.cos(number / 5) * math.exp(-number / 20)),
                "gradient_margin": 1.0 + 0.1 * math.cos(number),
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
        "news": [
            ("2021-01-24", HOSTILE),
            ("2021-01-23", "Sydney swelters: forty degrees expected"),
        ],
    }
    return ForecastPanel(**(values | changes))


def fitted(
    exponent: float | None, low: float | None, high: float | None, reason: str = ""
) -> dict[str, Any]:
    """A fitted exponent as ``metrics.json`` holds it."""
    return {
        "exponent": exponent,
        "low": low,
        "high": high,
        "n_used": 21,
        "n_left_out": 3,
        "reason": reason,
    }


EXPONENTS = {
    "agents": [
        fitted(0.52, 0.31, 0.74),
        fitted(0.95, 0.8, 1.12),
        fitted(None, None, None, "fewer than 8 rounds"),
    ],
    "mean": fitted(1.4, 1.2, 1.6),
}


def judged(name: str, failures: int) -> dict[str, Any]:
    """What ``lud.json`` says of one judge."""
    said = {
        "pairs": 8,
        "unchanged": 2,
        "mean_strategy_shift": 0.5,
        "mean_evidence_recombination": 0.25,
    }
    agents = [
        said | {"agent": agent, "mean_rius": 0.75, "mean_lud": 0.1234 + agent} for agent in range(3)
    ]
    return {"name": name, "asked": 18, "failures": failures, "agents": agents}


LUD: dict[str, Any] = {
    "artifact_hash": "a0",
    "encoder": "packaged:minilm",
    "prompt_hash": "feedfacefeedface",
    "updates_an_agent": 23,
    "judged_rounds": [1, 4, 7, 10, 14, 17, 20, 23],
    "agents": [
        {"agent": a, "first_to_last": 0.41 + a, "mean_delta": 0.21, "unchanged": a}
        for a in range(3)
    ],
    "judges": [judged("local:packaged:smollm2-135m/float32", 0), judged("endpoint:m-1", 2)],
    "agreement": [
        {
            "first": "local:packaged:smollm2-135m/float32",
            "second": "endpoint:m-1",
            "n": 16,
            "kappa_gate": 0.61,
            "kappa_strategy_shift": None,
            "kappa_evidence_recombination": 0.12,
            "pearson_lud": 0.77,
        }
    ],
}


def lud_rows() -> list[dict[str, Any]]:
    """Rows as ``lud.csv`` holds them: a distance every round, LUD where judged."""
    return [
        {
            "round": t,
            "agent": a,
            "judge": one["name"],
            "delta": 0.2,
            "lud": 0.2 if t in LUD["judged_rounds"] else None,
        }
        for one in LUD["judges"]
        for t in range(1, 24)
        for a in range(3)
    ]


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
        summary={"config_hash": CONFIG_HASH, "artifact_hash": "a0", "regret_exponent": EXPONENTS},
        lud=LUD,
        lud_rows=lud_rows(),
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

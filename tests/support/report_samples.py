"""A small invented experiment for the report's tests: rows, one run, two panels. All is fixed."""

import json
import math
from datetime import UTC, datetime
from unittest.mock import patch

import numpy as np
import polars as pl

from compevo_core.evaluation.comparison import PAIRED_TEST_SCHEMA
from compevo_core.evaluation.result_rows import RESULT_SCHEMA
from compevo_core.evaluation.scopes import ForecastPanel, write_panels
from compevo_core.paper.changes import ALL_TRIALS
from compevo_core.paper.report.figures import Plot
from compevo_core.paper.report.inputs import CHECK_COLUMNS, ReportInputs, TrainingRun
from compevo_core.paper.report.page import render_research
from compevo_core.training.run_folder import RunFolder
from tests.support.round_records import round_record

NOW = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)
REGIONS = ("NSW1", "QLD1", "SA1", "TAS1", "VIC1")
CONFIG_HASH = "ccompevo" * 2
# Tags, both kinds of quotes, an ampersand for HTML and a pipe for Markdown.
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
CHECKS = (
    ("artifact hash unchanged by 2026 inference", True, "0a4b55a8d778 before and after"),
    ("every article older than its origin", False, "1 of 500 articles is later: w-NSW1"),
)


def make_row(method, mae, **changes):
    row = dict.fromkeys(RESULT_SCHEMA)
    row |= {
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
        "chosen_round": 3,
    }
    return row | changes


def make_frame(*rows):
    return pl.DataFrame(list(rows), schema=RESULT_SCHEMA)


def make_rows():
    """Make rows of the test set, the leakage window and the ablation, pooled and by region."""
    made = []
    for subset, table in (("n2f-test-100", MAE), ("inference-2026-100", MAE_2026)):
        for method, mae in table.items():
            made.append(make_row(method, mae, subset=subset))
            scope = {"subset": subset, "n_windows": 20, "n_points": 960}
            made += [
                make_row(method, mae * factor, entity=region, **scope)
                for region, factor in zip(REGIONS, (1.6, 1.3, 0.5, 0.2, 1.4), strict=True)
            ]

    made += [
        make_row(variant, mae, experiment="ablation", subset="test")
        for variant, mae in VARIANTS.items()
    ]
    return make_frame(*made)


def make_rounds(count=24, agents=3, **changes):
    """Make the records of a run, each with ``changes``."""
    rng = np.random.default_rng(7)
    fitness = np.full(agents, -0.4)
    regret = np.zeros(agents)

    made = []
    for number in range(count):
        noise = rng.normal(0, 0.02, agents)
        reward = -0.15 - 0.3 * np.exp(-number / 8) - 0.04 * np.arange(agents) + noise
        fitness = 0.9 * fitness + 0.1 * reward
        gap = np.abs(rng.normal(0, 0.02, agents))
        regret = regret + gap
        weights = np.exp(fitness / 0.5) / np.exp(fitness / 0.5).sum()
        is_validated = number % 6 == 5
        values = {
            "rounds": count,
            "epoch": number // 12,
            "seconds": 9.0,
            "eta_seconds": 9.0 * (count - number),
            "train_seconds": 9.0 * (number + 1),
            "loss": float(-reward.mean()),
            "loss_pred": float(-reward.max()),
            "loss_pg": 0.02 * math.cos(number),
            "loss_div": 1.5 * math.exp(-number / 10),
            "loss_prune": 3.0 - 0.02 * number,
            "kl": 0.001 * number,
            "clip_fraction": 0.01,
            "grad_norm": 1.0 + 0.1 * math.sin(number),
            "weight_entropy": float(-(weights * np.log(weights)).sum()),
            "val_mae_scaled": float(-reward.max()) if is_validated else None,
            "val_prior_mae_scaled": 0.21 if is_validated else None,
            "rewards": reward.tolist(),
            "fitness": fitness.tolist(),
            "weights": weights.tolist(),
            "gates": [1.0 - 0.01 * number] * agents,
            "logics": [f"{LOGICS[agent % 3]} (round {number})" for agent in range(agents)],
            "group_logics": [["y"]] * agents,
            "equal_groups": int(number % 9 == 0),
            "best_response_gap": gap.tolist(),
            "group_regret": regret.tolist(),
            "regret": (0.05 * np.sqrt(number + 1) * np.arange(1, agents + 1)).tolist(),
            "gradient_conflict": float(np.cos(number / 5) * math.exp(-number / 20)),
            "gradient_margin": 1.0 + 0.1 * math.cos(number),
        }
        made.append(round_record(number, agents, **(values | changes)))

    made[-1].logics[0] = HOSTILE
    return made


def make_panel(entity="NSW1", **changes):
    """Make one half-hourly window with a gap in the truth."""
    rng = np.random.default_rng(len(entity))
    shape = 7500 + 1300 * np.sin(np.linspace(0, 2 * np.pi, 48) - 1.9) + rng.normal(0, 60, 48)
    truth = [float(value) for value in shape + 250]
    truth[30] = math.nan

    values = {
        "window_id": f"w-{entity}",
        "dataset": "electricity",
        "subset": "n2f-test-100",
        "entity": entity,
        "unit": "MW",
        "origin_utc": datetime(2021, 1, 24, 14, tzinfo=UTC),
        "step_minutes": 30,
        "history": shape.tolist(),
        "truth": truth,
        "forecasts": {
            "compevo": (shape + 160).tolist(),
            "calendar-ridge": (shape + 40).tolist(),
            "persistence": shape.tolist(),
        },
        "news": (
            ("2021-01-24", HOSTILE),
            ("2021-01-23", "Sydney swelters: forty degrees expected"),
        ),
    }
    return ForecastPanel(**(values | changes))


def make_fit(exponent, low, high, reason=""):
    return {
        "exponent": exponent,
        "low": low,
        "high": high,
        "n_used": 21,
        "n_left_out": 3,
        "reason": reason,
    }


NO_FIT = make_fit(None, None, None, "fewer than 8 rounds")
EXPONENTS = {
    "agents": [make_fit(0.52, 0.31, 0.74), make_fit(0.95, 0.8, 1.12), NO_FIT],
    "mean": make_fit(1.4, 1.2, 1.6),
}


def make_judge(name, failures):
    scores = {
        "pairs": 8,
        "unchanged": 2,
        "mean_strategy_shift": 0.5,
        "mean_evidence_recombination": 0.25,
        "mean_rius": 0.75,
    }
    agents = [scores | {"agent": agent, "mean_lud": 0.1234 + agent} for agent in range(3)]
    return {"name": name, "asked": 18, "failures": failures, "agents": agents}


#: What updates saved by LUD regime, as ``lud.json`` holds it of one judge.
GAINS = {
    "n": 18,
    "n_changed": 18,
    "pearson_r": 0.46,
    "pearson_p": 0.052,
    "regimes": ["low", "medium", "high"],
    "regime_edges": [0.265, 0.6],
    "n_by_regime": [11, 7, 0],
    "mean_lud_by_regime": [0.1625, 0.3819, None],
    "mean_gain_by_regime": [-0.0044, 0.0172, None],
}

LUD = {
    "artifact_hash": "a0",
    "encoder": "packaged:minilm",
    "prompt_hash": "feedfacefeedface",
    "updates_an_agent": 23,
    "judged_rounds": [1, 4, 7, 10, 14, 17, 20, 23],
    "agents": [
        {"agent": agent, "first_to_last": 0.41 + agent, "mean_delta": 0.21, "unchanged": agent}
        for agent in range(3)
    ],
    "judges": [
        make_judge("local:packaged:smollm2-135m/float32", 0),
        make_judge("endpoint:m-1", 2) | {"gains": GAINS},
    ],
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


def make_lud_rows():
    """Make rows of ``lud.csv``: a distance every round, LUD where judged."""
    return [
        {
            "round": number,
            "agent": agent,
            "judge": judge["name"],
            "delta": 0.15 + 0.05 * agent + 0.002 * number,
            "lud": 0.15 + 0.05 * agent if number in LUD["judged_rounds"] else None,
        }
        for judge in LUD["judges"]
        for number in range(1, 24)
        for agent in range(3)
    ]


def make_run():
    config = {
        "forecast": {"prior": "calendar-ridge", "decoder": "head"},
        "backbone": {"name_or_path": "packaged:smollm2-135m"},
        "population": {"rank": 16},
        "grpo": {"group_size": 8},
    }
    return TrainingRun(
        name="electricity",
        config=config,
        summary={"config_hash": CONFIG_HASH, "artifact_hash": "a0", "regret_exponent": EXPONENTS},
        lud=LUD,
        lud_rows=make_lud_rows(),
        rounds=make_rounds(),
        panels=(make_panel(), make_panel("QLD1", news=())),
    )


def make_check(*cells):
    """Make a leakage check: its name, whether it passed, and a detail."""
    return dict(zip(CHECK_COLUMNS, cells, strict=True))


def make_inputs(**changes):
    values = {
        "mode": "archive",
        "generated_at": NOW,
        "rows": make_rows(),
        "runs": (make_run(),),
        "configs": {CONFIG_HASH: make_run().config},
        "checks": [make_check(*cells) for cells in CHECKS],
        "paired": [
            dict.fromkeys(PAIRED_TEST_SCHEMA)
            | {
                "dataset": "electricity",
                "subset": "n2f-test-100",
                "method_a": "compevo",
                "method_b": "calendar-ridge",
                "n": 100,
                "n_blocks": 20,
                "p_value": 0.031,
                "mean_difference": -6.9,
                "p_two_sided": 0.062,
                "rank_sign": -1,
                "interval_low": -12.5,
                "interval_high": 0.25,
            }
        ],
    }
    return ReportInputs(**(values | changes))


def render_undrawn(inputs):
    """Return the page of research with empty images: to draw them is nearly all of the work."""
    with patch.object(Plot, "source", "data:image/svg+xml;base64,"):
        return render_research(inputs)


def write_run(path):
    folder = RunFolder(path)
    folder.model.mkdir(parents=True)
    run = make_run()
    folder.model_config_file.write_text(json.dumps(run.config))
    folder.metrics_file.write_text(json.dumps(run.summary))
    for record in make_rounds(6):
        folder.append_round(record)
    write_panels(folder.panels_file, [make_panel()])
    return path


def make_wins():
    """CompEvo, the blend that it starts from and one agent, on two test sets."""
    rows, tests = [], []
    for subset, n, mae in (("aemo-2021", 150, 120.0), ("aemo-2021-events", 47, 130.0)):
        scope = {"subset": subset, "n_windows": n}
        alone = scope | {"experiment": "ablation"}
        rows += [
            make_row("compevo", mae, **scope),
            make_row("blend", mae + 30, **scope),
            make_row("gbm", mae + 40, **scope),
            make_row("compevo-equal", mae - 1, config_hash="ccompevoccompevo", **scope),
            make_row("compevo", mae, **alone),
            make_row(ALL_TRIALS, mae + 9, **alone),
        ]
        test = make_inputs().paired[0] | {"subset": subset, "n": n, "mean_difference": -30.0}
        tests += [
            test | {"method_b": "blend", "interval_low": -36.0, "interval_high": -25.0},
            test
            | {"method_a": ALL_TRIALS, "method_b": "compevo", "mean_difference": 9.0}
            | {"interval_low": 4.0, "interval_high": 14.0},
        ]
    return make_inputs(rows=make_frame(*rows), paired=tests)

"""A launch: what the launchpad shows of every setting, and what is refused before any work."""

from types import SimpleNamespace

import dagster as dg
import pytest

from compevo_core.config.run import RunConfig, iterate_settings
from compevo_core.config.sections import MemberConfig
from compevo_core.errors import ConfigError
from compevo_pipeline.defs.assets.training import TrainConfig

STEP = "models__compevo__electricity"


@pytest.fixture(scope="module")
def job(defs):
    return defs.resolve_implicit_global_asset_job_def()


def launch(job, config, step=STEP):
    """Create the plan of a run, as a launch does, and return what the step would be given."""
    resolved = dg.validate_run_config(job, {"ops": {step: {"config": config}}})
    return resolved["ops"][step]["config"]


def test_the_launchpad_shows_every_setting():
    sections = TrainConfig.schema_of_launch().fields["settings"].config_type.fields
    for dotted, field in iterate_settings():
        section, name = dotted.split(".")
        shown = sections[section].config_type.fields[name]
        assert shown.description.startswith(" ".join(field.description.split())), dotted
        assert not shown.is_required and not shown.default_provided, dotted

    agents = sections["population"].config_type.fields["agents"].description
    assert "library: 10" in agents and "tiny 3" in agents and "at most 64" in agents
    decoder = sections["forecast"].config_type.fields["decoder"].config_type
    assert decoder.config_values == ["head", "text", "linear", "none"]
    members = sections["population"].config_type.fields["members"].config_type.inner_type
    assert set(members.fields) == set(MemberConfig.model_fields)


def test_an_unknown_mode_is_refused(job):
    config = {"resources": {"workspace": {"config": {"mode": "sampel"}}}}
    with pytest.raises(dg.DagsterInvalidConfigError, match="sampel"):
        dg.validate_run_config(job, config)


TYPOS = [
    (STEP, {"preset": "defualt"}, "defualt"),
    (STEP, {"settings": {"population": {"agent": 3}}}, "agent"),
    (STEP, {"settings": {"population": {"agents": "three"}}}, "agents"),
    (STEP, {"settings": {"forecast": {"decoder": "heads"}}}, "heads"),
    ("series__traffic", {"feeds": ["exchange"]}, "exchange"),
    ("news__embeddings", {"encodr": "hashing"}, "encodr"),
    ("windows__traffic", {"news_cutoff": "end"}, "end"),
    ("forecast__next_day__exchange", {"known_to": "noon"}, "noon"),
]
IMPOSSIBLE = [
    (STEP, {"settings": {"run": {"rounds": -5}}}, r"settings\.run\.rounds = -5"),
    (STEP, {"settings": {"population": {"agents": 65}}}, "64"),
    (STEP, {"settings": {"population": {"members": [{"prior": "gmb"}]}}}, r"members\[0\].*'gmb'"),
    (STEP, {"preset": "tiny", "settings": {"population": {"members": [{}]}}}, "1 .* 3 agents"),
    (STEP, {"launcher": "torchrun", "processes": -2}, "processes = -2"),
    (STEP, {"processes": 2}, "torchrun.* process"),
    (STEP, {"launcher": "torchrun", "shard_backbone": True}, "shard_backbone"),
    (STEP, {"preset": "tiny", "preset_file": "a.toml"}, "preset"),
    (STEP, {"preset_file": "nowhere.toml"}, r"nowhere\.toml"),
    (STEP, {"method": "calender-ridge"}, "'calender-ridge'.*calendar-ridge"),
    (STEP, {"method": "auto", "settings": {"run": {"rounds": -5}}}, "rounds = -5"),
    ("research__ablation__electricity", {"variants": []}, "variants"),
    ("evaluation__test__electricity", {"scopes": 0}, "scopes"),
    ("research__lud__electricity", {"pairs": 0}, "pairs"),
    ("series__traffic", {"feeds": []}, "feeds"),
    ("series__traffic", {"since": "yesterday"}, "'yesterday'"),
    ("series__traffic", {"since": "2026-02-01", "until": "2026-01-01"}, "until"),
    ("forecast__next_day__exchange", {"news_limit_hours": 0.0}, "news_limit_hours"),
]


@pytest.mark.parametrize(
    ("error", "step", "config", "named"),
    [
        *((dg.DagsterInvalidConfigError, *case) for case in TYPOS),  # by the launchpad's schema
        *((ConfigError, *case) for case in IMPOSSIBLE),
    ],
)
def test_a_wrong_choice_is_refused_before_work(job, research, error, step, config, named):
    if step.startswith("research"):
        job = research.resolve_implicit_global_asset_job_def()
    with pytest.raises(error, match=named):
        launch(job, config, step)


def test_a_misspelt_step_is_refused(job):
    chosen = job.get_subset(asset_selection={dg.AssetKey(["models", "compevo", "electricity"])})

    def read(step):
        dg.validate_run_config(chosen, config := {"ops": {step: {"config": {"preset": "tiny"}}}})
        run, op = SimpleNamespace(run_config=config), SimpleNamespace(op_config={})
        return TrainConfig.read(SimpleNamespace(job_def=chosen, run=run, op_execution_context=op))

    assert read("models__compevo__traffic") == read("models__compevo__electricity") == TrainConfig()
    with pytest.raises(ConfigError, match=f"electrcity'.*{STEP}"):
        read("models__compevo__electrcity")


def test_given_settings_override_the_presets(job, tmp_path):
    nothing = TrainConfig.model_validate(launch(job, {}))
    assert nothing.resolve("demo") == RunConfig.preset("demo")

    settings = {"population": {"agents": 2, "members": [{"prior": "gbm"}, {}]}}
    settings["optim"] = {"fusion_lr": None, "forecast_lr": 1}
    given = launch(job, {"preset": "tiny", "settings": settings})
    changes = {f"{part}.{name}": v for part, keys in settings.items() for name, v in keys.items()}
    expected = RunConfig.preset("tiny").with_overrides(changes)
    assert TrainConfig.model_validate(given).resolve("demo") == expected
    assert (expected.population.agents, expected.optim.forecast_lr) == (2, 1.0)

    own = tmp_path / "own.toml"
    own.write_text("[run]\nseed = 9\n")
    from_file = TrainConfig.model_validate(launch(job, {"preset_file": str(own)}))
    assert from_file.resolve("demo").run.seed == 9

"""What the code never does, where a secret never shows, and where the UI listens."""

import ast
import json
import logging
import re
from pathlib import Path

import dagster as dg
import pytest

from compevo_pipeline.config.settings import JUDGE_KEY_VARIABLE, Settings
from compevo_pipeline.defs.resources import JudgeEndpoint

REPO = Path(__file__).resolve().parents[1]
SOURCES = [
    path
    for folder in ("compevo_core", "compevo_pipeline", "benchmarks", ".ci", "docs", "deploy")
    for path in sorted((REPO / folder).rglob("*.py"))
]
CODE_FROM_BYTES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
"""Modules that run what a file says."""

CANARY = "canary-K3y/+&="


def find_dangers(tree: ast.AST) -> list[str]:
    """Calls and imports that run code from data, or hand text to a shell."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else names
            found += [name for name in modules if name.split(".")[0] in CODE_FROM_BYTES]
        if isinstance(node, ast.Call):
            found += find_dangerous_call(node)
    return found


def find_dangerous_call(call: ast.Call) -> list[str]:
    name = ast.unparse(call.func)
    options = {one.arg: ast.unparse(one.value) for one in call.keywords}
    found = []
    if name in {"eval", "exec", "os.system", "os.popen", "torch.load", "subprocess.getoutput"}:
        found.append(name)
    if name.endswith(("yaml.load", "read_pickle")):
        found.append(name)
    if options.get("shell", "False") != "False":
        found.append(f"{name}(shell=...)")
    if options.get("use_safetensors", "True") != "True":
        found.append(f"{name}(use_safetensors=...)")
    if options.get("trust_remote_code", "False") != "False":
        found.append(f"{name}(trust_remote_code=...)")
    if options.get("allow_pickle", "False") != "False":
        found.append(f"{name}(allow_pickle=...)")
    # Weights come as safetensors or GGUF: the default would fall back to pickled ones.
    loads_a_model = re.search(r"Model\w*\.from_pretrained$", name)
    if loads_a_model and not {"use_safetensors", "gguf_file"} & set(options):
        found.append(f"{name} of any kind of weights")
    return found


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from joblib import load",
        "torch.load(path)",
        "np.load(path, allow_pickle=True)",
        "yaml.load(text)",
        "subprocess.run(command, shell=True)",
        "AutoTokenizer.from_pretrained(name, trust_remote_code=True)",
        "AutoModelForCausalLM.from_pretrained(name)",
        "pd.read_pickle(path)",
        "eval(text)",
    ],
)
def test_each_danger_would_be_seen(line):
    assert find_dangers(ast.parse(line))


def test_no_file_is_run_and_no_text_reaches_a_shell():
    dangers = {
        f"{path.relative_to(REPO)}: {danger}"
        for path in SOURCES
        for danger in find_dangers(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert dangers == set()


def test_no_file_of_the_repository_holds_a_pickle():
    endings = {".pkl", ".pickle", ".pt", ".pth", ".joblib", ".ckpt", ".bin"}
    folders = ("compevo_core", "compevo_pipeline", "tests", "results", "docs", "benchmarks")
    held = [path for folder in folders for path in (REPO / folder).rglob("*")]
    assert [path.name for path in held if path.suffix in endings] == []


@dg.asset
def _asks_the_judge(context: dg.AssetExecutionContext, judge_endpoint: JudgeEndpoint) -> None:
    context.log.info(f"asks {judge_endpoint}")
    judge = judge_endpoint.create_judge()
    assert judge is not None
    judge.judge("old", "new")


def test_the_judges_key_shows_nowhere_in_a_run_that_fails(monkeypatch, tmp_path, caplog):
    # Nothing listens there: the key would be sent to this machine alone, and is not even sent.
    monkeypatch.setenv(JUDGE_KEY_VARIABLE, CANARY)
    settings = Settings.from_environment(
        {
            "COMPEVO_HOME": str(tmp_path / "home"),
            "COMPEVO_JUDGE_URL": "http://127.0.0.1:9",
            "COMPEVO_JUDGE_MODEL": "judge",
            JUDGE_KEY_VARIABLE: CANARY,
        }
    )
    (tmp_path / "dagster").mkdir()
    instance = dg.DagsterInstance.local_temp(str(tmp_path / "dagster"))
    with caplog.at_level(logging.DEBUG):
        result = dg.materialize(
            [_asks_the_judge],
            instance=instance,
            resources={"judge_endpoint": JudgeEndpoint.from_settings(settings)},
            raise_on_error=False,
        )
    assert not result.success

    events = [str(entry) for entry in instance.all_logs(result.run_id)]
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    shown = [*events, json.dumps(run.run_config), str(run), caplog.text, repr(settings)]
    assert [text for text in shown if CANARY in text] == []

    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.name for path in written if CANARY.encode() in path.read_bytes()] == []


def test_the_ui_listens_on_this_machine_alone():
    starts = re.findall(r"dagster dev[^\n]*", (REPO / "Makefile").read_text(encoding="utf-8"))
    assert starts
    assert all("--host 127.0.0.1" in start for start in starts)

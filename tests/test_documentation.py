"""The documentation keeps what it promises: current pages, links and names that exist."""

import ast
import re
import subprocess
from collections.abc import Iterator
from datetime import date, datetime
from functools import cache
from pathlib import Path

import polars as pl
import pytest
import typer

from compevo_core.config.run import RunConfig
from compevo_core.evaluation.result_rows import RESULT_SCHEMA
from compevo_pipeline.cli.main import app
from compevo_pipeline.config.settings import VARIABLES
from docs.generate import result_rows_page
from tests.core.config.test_config import PAPER
from tests.support.population import join_windows, news_pool
from tests.test_architecture import sources

REPO = Path(__file__).resolve().parents[1]
PAGES = sorted([*REPO.glob("*.md"), *(REPO / "docs").rglob("*.md")])
DECISIONS = {path.stem: path for path in (REPO / "docs" / "decisions").glob("[0-9]*.md")}
#: Names in a text that are not files of the repository.
MADE_UP = re.compile(
    r"(?:tests/|compevo_core/)?(?:a|once|more|(?:test_)?sums|github3|nowhere|diagnostics)(?:\.py)?"
    r"|notes\.md|MetadataValue\.md|.*\.lock\.new"
    r"|(?:configs/|src/(?:engine/|models/)?)?(?:base_config|agent|dataset|loss|trainer|news_selector"
    r"|logic_generator|evolutionary_framework)\.py"  # of the paper's repository
)
PROOF_ONLY = set(range(26, 48)) | {49, 50}
CODE = re.compile(r"`((?:[\w/]+/)?\w+\.py)(?::([\w.]+))?`")
TEST = re.compile(r"`((?:[\w/]+/)?test_\w+\.py)::(test_\w+)`")
PAPER_MAP = (REPO / "docs" / "paper-map.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(REPO).as_posix())
def test_every_relative_link_leads_to_a_file(page):
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text("utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_column_of_a_result_row_is_described():
    assert [name for name in RESULT_SCHEMA if f"`{name}`" not in result_rows_page()] == []


def test_every_variable_that_the_code_reads_is_described():
    text = "\n".join(path.read_text("utf-8") for path in (REPO / "compevo_pipeline").rglob("*.py"))
    read = set(re.findall(r"\bCOMPEVO_[A-Z]+(?:_[A-Z]+)*\b", text))
    assert read and read <= set(VARIABLES)
    assert all(meaning for _, meaning in VARIABLES.values())


def test_decisions_are_numbered_with_status_and_date():
    assert [int(name[:2]) for name in sorted(DECISIONS)] == list(range(1, len(DECISIONS) + 1))
    day = r"\d{4}-\d\d-\d\d"
    for page in DECISIONS.values():
        heading, _, status = page.read_text("utf-8").splitlines()[:3]
        assert heading.startswith("# ")
        assert re.fullmatch(rf"Status: \w[\w ]* · {day}(, amended {day})?", status)


def test_the_architecture_page_lists_every_folder():
    page = (REPO / "docs" / "explanation" / "architecture.md").read_text("utf-8")
    for package in ("compevo_core", "compevo_pipeline"):
        section = page.split(f"## {package}\n")[1].split("\n## ")[0]
        listed = re.findall(r"^\| `(\w+)/` \| \w", section, re.M)
        folders = {path.parent.name for path in (REPO / package).glob("*/__init__.py")}
        assert sorted(listed) == sorted(folders)


def test_every_path_in_a_tracked_text_exists():
    command = ["git", "-C", str(REPO), "ls-files", "-z"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    parts = [name.split("/") for name in listed if name and (REPO / name).is_file()]
    known = {"/".join(p[start:]) for p in parts for start in range(len(p))}
    known |= {"/".join(p[:end]) for p in parts for end in range(len(p))}

    tops = "|".join(sorted({re.escape(p[0]) for p in parts if len(p) > 1}))
    path_like = re.compile(
        rf"(?<![\w./~}}{{$*<>:-])((?:{tops})/[\w./<{{*-]*\w|[\w/-]+\.(?:py|md))(?![\w<{{*])"
    )
    words = {
        f"{'/'.join(p)}: {word}": word
        for p in parts
        for word in path_like.findall(REPO.joinpath(*p).read_text("utf-8", errors="ignore"))
    }
    assert len(words) > 500
    missing = {at for at, word in words.items() if word not in known and not set("<{*") & {*word}}
    assert {at for at in missing if not MADE_UP.fullmatch(words[at])} == set()


def test_every_decision_that_is_cited_exists():
    files = sources("compevo_core", "compevo_pipeline", "benchmarks", "docs", "tests")
    texts = (path.read_text("utf-8") for path in files)
    cited = {name for text in texts for name in re.findall(r"\bdecision[\s#]+(\d[\w-]*)", text)}
    assert len(cited) > 10
    assert cited <= DECISIONS.keys()


def test_every_command_of_a_page_exists():
    commands = typer.main.get_command(app).commands
    wrong, seen = [], set()
    for page in PAGES:
        text = page.read_text("utf-8").replace("\\\n", " ")
        for name, rest in re.findall(r"(?:^|`|\$ )compevo ([a-z][\w-]*)([^`\n#]*)", text, re.M):
            seen.add(name)
            options = re.findall(r"(?<=\s)--[a-z-]+", rest)
            command, words = commands.get(name), rest.split()
            while words and (inner := getattr(command, "commands", {})):
                # any other word is an experiment's
                command = inner.get(words.pop(0), inner.get("paper"))
                seen.add(getattr(command, "name", None))
            known = {text for param in getattr(command, "params", []) for text in param.opts}
            unknown = [option for option in options if option not in known | {"--help"}]
            if command is None or unknown:
                wrong.append(f"{page.name}: compevo {name} {' '.join(unknown)}")

    assert wrong == []
    assert len(seen) > 20


def run_python(page, names, replacements=()):
    """Run the code of a page with these names, which then hold what it made."""
    blocks = re.findall(r"```python\n(.*?)```", (REPO / page).read_text("utf-8"), re.DOTALL)
    code = "\n".join(blocks)
    for shown, here in replacements:
        assert shown in code
        code = code.replace(shown, here)
    exec(compile(code, page, "exec"), names)  # noqa: S102 - the page's own code


@pytest.mark.slow
def test_the_readmes_python_gives_its_errors(capsys):
    run_python("README.md", names := {})
    assert names["forecast"].shape[0] == 7
    text = (REPO / "README.md").read_text("utf-8")
    said = re.search(r"# ([\d.]+) and ([\d.]+) MW", text).groups()
    errors = map(float, capsys.readouterr().out.split())
    assert list(errors) == pytest.approx(list(map(float, said)), abs=0.02)


@pytest.mark.slow
def test_the_python_on_own_data_runs(tmp_path, monkeypatch):
    days = pl.date_range(date(2023, 1, 1), date(2024, 10, 28), "1d", eager=True)
    sales = pl.DataFrame({"unique_id": "shop", "ds": days, "y": [float(d.weekday()) for d in days]})
    hours = pl.datetime_range(datetime(2024, 1, 1), datetime(2024, 3, 1), "1h", eager=True)  # noqa: DTZ001
    load = pl.DataFrame({"ds": hours, "y": [10.0 + (h.hour - 9) ** 2 for h in hours]}).with_columns(
        temperature=pl.col("y") - 5, visitors=pl.col("y") % 7
    )

    monkeypatch.chdir(tmp_path)
    names = {
        "sales": sales.head(-28),
        "newer_sales": sales.tail(28),
        "load": load.head(-24),
        "newer_load": load.tail(24),
        "weather": load.tail(24).select("ds", "temperature"),
    }
    run_python("docs/how-to/own-data.md", names)
    assert names["moved"]["ds"][0] == date(2024, 10, 29)
    assert names["errors"]["cutoff"].n_unique() == 4
    assert names["forecast"].shape[0] == 24 and "q0.5" not in names["forecast"].columns


@pytest.mark.slow
def test_the_python_of_the_tutorial_runs(tmp_path, monkeypatch):
    join_windows(("train", 8, 0), ("val", 2, 20), ("test", 2, 40)).write(tmp_path / "windows")
    news_pool().write(tmp_path / "news")

    replacements = (
        (".compevo/sample/windows/electricity", str(tmp_path / "windows")),
        (".compevo/sample/news/electricity", str(tmp_path / "news")),
        ('preset("demo")', 'preset("tiny")'),
    )
    monkeypatch.chdir(tmp_path)
    run_python("docs/tutorials/train-and-predict.md", names := {}, replacements)
    assert names["forecast_NH"].shape == (4, 48)


def test_committed_pairs_have_equal_seeds():
    for kind in ("ablation", "experiment"):
        paths = sorted((REPO / "results").glob(f"paired-{kind}-*.csv"))
        pairs = [pl.read_csv(path).select("seeds_a", "seeds_b") for path in paths]
        assert pl.concat(pairs).filter(pl.col("seeds_a") != pl.col("seeds_b")).is_empty()


def test_the_readmes_numbers_come_from_rows():
    text = " ".join((REPO / "README.md").read_text("utf-8").split())
    paired = pl.read_csv(REPO / "results" / "paired-electricity-operational.csv")
    differences = {
        row["method_b"]: (row["mean_difference"], row["interval_low"], row["interval_high"])
        for row in paired.filter(subset="operational-2026-200-known-1700").iter_rows(named=True)
    }
    mean, low, high = differences["published"]
    interval = f"(95 % interval {-high:.1f} to {-low:.1f})"
    assert f"{-mean:.1f} MW lower than AEMO's forecast {interval}" in text
    mean, low, high = differences["compevo-equal"]
    assert f"(difference {mean:.2f} MW, interval {low:.2f} to {high:.2f})" in text

    rows = pl.read_csv(REPO / "results" / "benchmark-paper-original.csv", infer_schema_length=None)
    scored = rows.filter(method="compevo", subset="paper-original", entity="pooled")["mae"]
    assert f"`default` have {scored.min():.0f} to {scored.max():.0f} MW" in text


def test_every_bad_input_row_names_a_test():
    text = (REPO / "tests" / "fuzz" / "README.md").read_text("utf-8")
    code = "\n".join(path.read_text("utf-8") for path in (REPO / "tests").rglob("test_*.py"))
    rows = [line for line in text.splitlines() if line.startswith("| ") and "| Test |" not in line]
    assert len(rows) >= 20
    assert [row for row in rows if not re.search(r"`test_\w+`", row)] == []
    assert [name for name in re.findall(r"`(test_\w+)`", text) if f"def {name}(" not in code] == []


def rows(table: str) -> list[list[str]]:
    """Cells of one table, without its head."""
    text = PAPER_MAP.split(f"## {table}\n")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@cache
def names_in(path: Path) -> frozenset[str]:
    """Functions, classes, methods and class fields a file defines, dotted."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    tops = [node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    inner = [(top, node) for top in tops for node in top.body if isinstance(node, ast.FunctionDef)]
    return frozenset({node.name for node in tops} | {f"{top.name}.{n.name}" for top, n in inner})


def numbers(cell: str) -> set[int]:
    """``16, 54`` and ``26-37`` as numbers."""
    spans = [part.strip().split("-") for part in cell.split(",")]
    return {n for span in spans for n in range(int(span[0]), int(span[-1]) + 1)}


@pytest.mark.parametrize(("pattern", "home"), [(CODE, "compevo_core"), (TEST, "tests/core")])
def test_everything_on_the_map_exists(pattern, home):
    named = pattern.findall(PAPER_MAP)
    named = [pair for pair in named if pattern is TEST or not re.search(r"\btest_", pair[0])]
    assert len(named) > 50
    missing = []
    for file, name in named:
        path = next((at for at in (REPO / home / file, REPO / file) if at.is_file()), None)
        if path is None or (name and name not in names_in(path)):
            missing.append(f"{file}:{name}")
    assert missing == []


def test_every_equation_of_the_paper_has_one_row():
    listed = [n for row in rows("Equations") for n in numbers(row[0])]
    # As the paper's source typesets them: 1 to 18 in the text, then appendices B, C and E.8.
    assert sorted(listed) == list(range(1, 56))


def test_only_equations_of_proofs_have_no_code():
    for number, _, here, test, remark in rows("Equations"):
        if numbers(number) <= PROOF_ONLY:
            assert (here, test) == ("none", "none")
            assert remark
        else:
            assert CODE.search(here), number
            assert TEST.search(test), number


def test_every_step_and_theorem_is_tested():
    for table in ("Steps of a round", "Templates", "Theorems, tables and figures"):
        for row in rows(table):
            assert CODE.search(" ".join(row)), row[0]
            assert TEST.search(" ".join(row)), row[0]


def test_the_hyperparameter_table_equals_the_defaults():
    defaults, seen = RunConfig().to_dict(), set()
    for name, value, setting, _, _ in rows("Hyperparameters"):
        section, key = setting.strip("`").split(".")
        assert defaults[section][key] == float(value), name
        seen.add(f"{section}.{key}")
    assert seen >= PAPER.keys() - {"run.batch_size", "population.exposed_peers"}


CLEAN = [path.name for path in REPO.glob("*.md")]
CLEAN += ["docs", "benchmarks", "compevo_core", "compevo_pipeline", "tools"]
#: Sentences that a native speaker would not say, with an example of what to say instead.
PATTERNS = {
    r"\b(?:that|those) of\b": "repeat the noun: 'than the error of ...'",
    r"\bthe [a-z]\w+'s[.;)]": "'the name of the file', not 'the file's'",
    r"; else\b|, else the\b": "(default: ...)",
    r"\bis of\b|\bare of\b": "belongs to, is measured in, comes from",
    r"\bmay know\b": "may use, can see",
    r"\bstands?\b(?! for\b| in for\b|-in\b)": "is",
    r"\b(?:and|that|which) (?:is|are) none\b": "is not a ...",
    r"\bwhat is (?:of|made of|asked)\b": "name the thing",
}
#: Words of an earlier dialect.
DIALECT = {
    r"(?<!-)\balone\b": "only, by itself",
    r"\bbeside\b": "next to, with, compared with",
    r"\b(?:lies?|lay) (?:in|on|at|below|above|beyond|between|outside|within|before|after)\b": "is",
    r"(?<!\")\b(?:goes|went|going) on\b": "continues, resumes",
    r"\banew\b|\bfor ever\b|\bsays of\b|(?<!\")\btold\b": "again, deadlocks, shows, is sent",
    r"\bwhatever\b|\bnobody\b": "any, every; no one, or say it without a person",
}
GENERATED = re.compile(r"<!-- ([\w-]+): made by .*?<!-- end of \1 -->", re.DOTALL)


def read_texts(path: Path) -> Iterator[str]:
    """Prose of a page without generated parts and code, or the strings of a module."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        nodes = ast.walk(ast.parse(text))
        yield from (n.value for n in nodes if isinstance(n, ast.Constant) if type(n.value) is str)
    elif "<!-- made by `make docs`" not in text:
        yield re.sub(r"```.*?```|`[^`\n]*`", "", GENERATED.sub("", text), flags=re.DOTALL)


def find_faults(path: Path) -> list[str]:
    texts = [(text, PATTERNS) for text in read_texts(path)]
    # Comments of a module, too.
    whole = [path.read_text("utf-8")] if path.suffix == ".py" else read_texts(path)
    texts += [(text.lower(), DIALECT) for text in whole]
    return [
        f"{flat[max(0, m.start() - 40) : m.end() + 30]!r}: {advice}"
        for flat, patterns in ((" ".join(text.split()), patterns) for text, patterns in texts)
        for pattern, advice in patterns.items()
        for m in re.finditer(pattern, flat)
    ]


@pytest.mark.parametrize("name", CLEAN)
def test_what_people_read_is_plain_english(name):
    suffixes = ("md", "py", "html")
    files = [p for end in suffixes for p in (REPO / name).rglob(f"*.{end}")] or [REPO / name]
    found = {path.relative_to(REPO).as_posix(): find_faults(path) for path in files}
    assert {path: faults for path, faults in found.items() if faults} == {}

"""The engine against ordinary ways of doing the same, in one run: ``python -m benchmarks.engine``.

What belongs here: which cases are run for how many agents, each in a process of its own. What does
not: the measuring itself (``cases``), the table (``engine_rows``), and torch: this process stays
small, because a process inherits the memory high-water mark of the one that started it.

Cases of the preset ``default`` with the paper's group, each with its reference:
    round: a whole round; PEFT, an adapter set once an agent, windows in one padded batch.
    policy: the policy step; TRL's trainer, agent by agent.
    inference: one batch's forecasts; PEFT as above, and in row ``inference-mixed`` PEFT's mixed
        batch (``adapter_names``).

Cases of the preset as it stands:
    gradient: the forecast phase by agent; all agents at once. The ratio of
        ``gradient-difference`` is the norm of their difference over their norm, of the tensor that
        differs most.
    memory-joint, memory-by-agent: peak memory of rounds without rewriting; none. ``state_gb`` of it
        are trained tensors, their gradients and the optimiser's averages.
    preset-round, preset-rewriting: a round without and with rewriting of logics; none.
    preset-inference: 100 windows; none.
    preset-pass: one pass over 1,975 windows; none.
    sampling: logics with slots, four for each agent, prompts read before; a forward pass and the
        logits of the whole vocabulary for every token, in turns with ours.

Cases of the processor:
    ceiling: rows ``matmul-2048``, whose ratio is GFLOP/s, and ``backbone-forward``, whose ratio is
        the share of that ceiling.
    product: rows ``products-N-rows``, N rows through every frozen layer; torch's own linear in
        float32, and in rows ``bfloat16-N-rows`` in bfloat16.

Rows derived from others: the ratio of ``round-exponent`` is the exponent of seconds a round in the
number of agents, that of ``memory-joint-ratio`` and ``memory-by-agent-ratio`` the peak with the
most agents over the peak with the fewest, both without ``state_gb``. Elsewhere the ratio is
reference over ours: above 1, ours is faster. ``dtype`` is that of ours (``backbone.dtype``);
references by other libraries are float32.

A row replaces the one of the same case, agents, backbone and dtype; the others stay.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.engine_rows import (
    COLUMNS,
    REPO,
    RESULTS,
    Row,
    derive_rows,
    describe_surroundings,
    merge_rows,
    read_rows,
    write_rows,
)
from compevo_pipeline.config.settings import child_environment

#: How many agents each case is measured for.
PLAN: dict[str, tuple[int, ...]] = {
    "ceiling": (1,),
    "product": (1,),
    "gradient": (1, 3, 10),
    "inference": (1, 3, 10),
    "memory-by-agent": (1, 3, 10),
    "memory-joint": (1, 3, 10),
    "preset-inference": (3,),
    "preset-pass": (3,),
    "preset-rewriting": (3,),
    "preset-round": (3,),
    "policy": (1, 3, 10),
    "round": (1, 3, 10),
    "sampling": (3,),
}
RESULT_MARK = "RESULT "  # as in cases.py, which this small process does not import
_LAST_CHARACTERS = 2000  # of a failed process's output, in the message

Runner = Callable[[str, int, int, bool, int], list[Row]]


def measure_in_subprocess(
    case: str, agents: int, repeats: int, quick: bool, threads: int
) -> list[Row]:
    """Run one case in a process of its own.

    Raises:
        RuntimeError: the process failed, or printed no result.
    """
    command = [sys.executable, "-m", "benchmarks.cases", case]
    command += ["--agents", str(agents), "--repeats", str(repeats)]
    if quick:
        command.append("--quick")

    done = subprocess.run(  # noqa: S603 - this interpreter and fixed arguments
        command,
        cwd=REPO,
        env=child_environment(threads),
        capture_output=True,
        text=True,
        check=False,
    )

    lines = done.stdout.splitlines()
    rows = [
        json.loads(line.removeprefix(RESULT_MARK)) for line in lines if line.startswith(RESULT_MARK)
    ]
    if done.returncode or not rows:
        raise RuntimeError(
            f"case {case} with {agents} agents ended with code {done.returncode} and {len(rows)} "
            f"results; run it alone to see why: {' '.join(command)}\n"
            f"{done.stderr[-_LAST_CHARACTERS:]}"
        )
    return rows


def run(
    cases: Iterable[str],
    agents: Iterable[int] | None,
    repeats: int,
    out: Path,
    *,
    quick: bool = False,
    threads: int = 0,
    runner: Runner = measure_in_subprocess,
) -> list[Row]:
    """Measure cases and write the table after each of them.

    Args:
        cases: keys of :data:`PLAN`.
        agents: only these numbers of agents; ``None`` is each case's own. A case with one number
            is always measured.
        repeats: runs of each case.
        out: the table.
        quick: whether to take the tiny random backbone.
        threads: threads of torch; 0 is its own choice.
        runner: measures one case.

    Returns:
        all rows of the table.
    """
    surroundings = describe_surroundings()
    wanted = None if agents is None else set(agents)
    rows = read_rows(out)

    for case in cases:
        for count in PLAN[case]:
            if wanted is not None and count not in wanted and len(PLAN[case]) > 1:
                continue

            for result in runner(case, count, repeats, quick, threads):
                sys.stdout.write(json.dumps(result) + "\n")
                sys.stdout.flush()
                described = result | surroundings
                rows = merge_rows(rows, [{name: described[name] for name in COLUMNS}])

        rows = merge_rows(rows, derive_rows(rows, surroundings))
        write_rows(rows, out)
    return rows


app = typer.Typer(add_completion=False)


@app.command()
def main(
    cases: Annotated[list[str] | None, typer.Argument(help="Default: all.")] = None,
    agents: Annotated[
        list[int] | None,
        typer.Option(help="Only this number of agents (may be given more than once)."),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Runs of each case; medians are written.")] = 3,
    threads: Annotated[int, typer.Option(help="Threads of torch; 0 is its own choice.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="The tiny random backbone; needs --out.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="The table.")] = None,
) -> None:
    """Measure the engine against ordinary ways of doing the same."""
    if unknown := sorted(set(cases or ()) - PLAN.keys()):
        raise typer.BadParameter(f"no case {', '.join(unknown)}; known: {', '.join(PLAN)}")
    if quick and out is None:
        raise typer.BadParameter(
            "--quick times nothing real: name a table with --out, so that the committed one stays "
            "as it is"
        )

    run(
        cases or PLAN,
        agents or None,
        repeats,
        out or RESULTS,
        quick=quick,
        threads=threads,
        runner=measure_in_subprocess,
    )


if __name__ == "__main__":
    app()

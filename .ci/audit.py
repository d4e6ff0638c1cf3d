"""Ask whether a locked dependency has a known fault, where a database can be reached.

    python .ci/audit.py [--must-answer] [requirements.lock]

Exit code 1 on a finding. Without a network the database cannot be asked: that is said, and is not
a failure unless an answer is demanded, for a build must not depend on it.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

MUST_ANSWER = "--must-answer"
REPO = Path(__file__).resolve().parents[1]


def ask(lock: Path) -> subprocess.CompletedProcess[str]:
    """Run pip-audit on the lock, whose hashes make any resolving needless."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(lock), "--timeout", "15"]
    options = ["--require-hashes", "--disable-pip", "--format", "json", "--progress-spinner", "off"]
    return subprocess.run(  # noqa: S603 - this interpreter, and a path of the repository
        [*command, *options], capture_output=True, text=True, check=False
    )


def read_findings(answer: str) -> list[str] | None:
    """Return the known faults in pip-audit's answer, or None where it gave none."""
    try:
        packages = json.loads(answer)["dependencies"]
    except (json.JSONDecodeError, KeyError, TypeError):
        return None

    return [
        f"{one['name']} {one['version']}: {fault['id']}, mended in "
        f"{', '.join(fault['fix_versions']) or 'no version yet'}"
        for one in packages
        for fault in one.get("vulns", [])
    ]


def main(arguments: Sequence[str]) -> int:
    """Ask, and say what was found."""
    must_answer = MUST_ANSWER in arguments
    named = [argument for argument in arguments if argument != MUST_ANSWER]
    lock = Path(named[0]) if named else REPO / "requirements.lock"
    done = ask(lock)
    findings = read_findings(done.stdout)

    if findings is None:
        reason = done.stderr.strip().splitlines()[-1:] or ["no answer"]
        sys.stdout.write(f"could not ask for known faults ({reason[0][:200]}); nothing is known\n")
        return int(must_answer)
    sys.stdout.writelines(f"{finding}\n" for finding in findings)
    sys.stdout.write(f"{len(findings)} known fault(s) in the dependencies\n")
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

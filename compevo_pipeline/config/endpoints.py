"""OpenAI-compatible endpoints of a deployment: judges of logics, and what writes logics.

What belongs here: settings -> selector; one request with a time limit, and what each failure means.
What does not: prompts and verdicts (``compevo_core.agents.logic_writer``, the wing's judges),
retries by the caller. A deployment has one endpoint: the selector's address and key are the
judge's, and a run's settings name the model. A key travels in one header, to one host, over TLS or
to this machine only; it is in no error message.
"""

import ipaddress
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import requests

from compevo_core import errors
from compevo_core.config.run import RunConfig
from compevo_core.lm.model_sources import ENDPOINT, Transport
from compevo_pipeline.config.settings import Settings

TIMEOUT_SECONDS = 60.0
MAX_REPLY_BYTES = 10_000_000


def endpoint_transport(base_url: str, *, api_key: str | None) -> Transport:
    """A callable that posts a body to ``<base_url>/chat/completions`` and returns the JSON answer.

    Raises (the callable):
        SourceTransient: no connection, time out, 408, 409, 425, 429 or 5xx; worth another try.
        SourceBlocked: 401, 402 or 403; the key is missing, wrong or out of credit.
        SourceRejected: any other status, redirects included.
        SchemaDrift: an answer that is not a JSON object, or longer than ``MAX_REPLY_BYTES``.
    """
    parts = urlsplit(base_url)
    # A password in the address would end up in error messages and logs.
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
        raise errors.ConfigError(
            "the judge's address must be http(s)://host[:port]/path without user, password or query"
        )
    if api_key and parts.scheme == "http" and not _is_local(parts.hostname):
        raise errors.ConfigError(
            f"refusing to send the judge's key to {parts.hostname} in clear: use https"
        )

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    session = requests.Session()
    url = f"{base_url.rstrip('/')}/chat/completions"

    def ask(body: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            # A redirect would carry the key to another host or turn the POST into a GET.
            with session.post(
                url,
                json=dict(body),
                headers=headers,
                timeout=TIMEOUT_SECONDS,
                allow_redirects=False,
                stream=True,
            ) as response:
                status = response.status_code
                if status in (408, 409, 425, 429) or status >= 500:
                    raise errors.SourceTransient(f"{url}: status {status}; try again later")
                if status in (401, 402, 403):
                    raise errors.SourceBlocked(
                        f"{url}: status {status}; check the judge's key and credit in the settings"
                    )
                if status != 200:
                    raise errors.SourceRejected(
                        f"{url}: status {status}; check the judge's address and model name in the "
                        "settings"
                    )
                content = bytearray()
                # Read in pieces: a server that never stops must not fill the memory.
                for chunk in response.iter_content(65_536):
                    content += chunk
                    if len(content) > MAX_REPLY_BYTES:
                        raise errors.SchemaDrift(
                            f"{url}: more than {MAX_REPLY_BYTES} bytes; answers are shorter: check "
                            "the endpoint"
                        )
        except (
            requests.ConnectionError,
            requests.Timeout,
            requests.exceptions.ChunkedEncodingError,
        ) as error:
            raise errors.SourceTransient(
                f"{url}: {type(error).__name__}; is the judge up? try again later"
            ) from error

        hint = "is this an OpenAI-compatible endpoint?"
        try:
            answer = json.loads(content.decode("utf-8"))
        except ValueError as error:
            raise errors.SchemaDrift(f"{url}: status 200 but not JSON; {hint}") from error
        if not isinstance(answer, dict):
            raise errors.SchemaDrift(f"{url}: JSON, but not an object; {hint}")
        return answer

    return ask


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def open_judge(wanted: str, settings: Settings) -> Transport:
    """Return what asks the endpoint of a deployment's judge; ``wanted`` is what needs it.

    ConfigError where none is set.
    """
    if not settings.judge_url:
        raise errors.ConfigError(
            f"{wanted} needs an endpoint: set COMPEVO_JUDGE_URL and COMPEVO_JUDGE_MODEL, or leave "
            "it out"
        )
    key = settings.judge_key.get_secret_value()
    return endpoint_transport(settings.judge_url, api_key=key or None)


def read_selector(config: RunConfig) -> Transport | None:
    """Return what asks the endpoint, or None where the backbone mutates or nothing does."""
    selector = config.evolution.selector
    if not selector.startswith(ENDPOINT):
        return None
    return open_judge(f"evolution.selector = {selector!r}", Settings.from_environment())

"""A server of vLLM's OpenAI-compatible protocol, on the tiny backbone; no test lives here.

It has the routes that ``evolution.writer`` asks for. PEFT reads adapters from the folder that a
request names, and plain transformers draw the samples: nothing of the product computes here.
"""

import contextlib
import json
import re
import threading
from pathlib import Path
from typing import Any

import responses
import torch
from peft import PeftModel

from tests.support.tiny_backbone import build_backbone

MODEL = "tiny"


class LoraServer:
    """What is loaded, what was asked, and the log-probability of each token that was sampled."""

    url = "https://writer.example/v1"

    def __init__(self):
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.loaded: dict[str, str] = {}  # names, and what PEFT calls them
        self.logp: dict[tuple[Any, ...], torch.Tensor] = {}  # by the adapter's name and the ids
        self._model: Any = build_backbone().model
        self._lock = threading.Lock()
        self._count = 0

    def answer(self, route, body):
        """Return status and answer, with the statuses of vLLM; words where it answers in words."""
        with self._lock:
            self.asked.append((route, body))
            if route == "models":
                return 200, {"data": [{"id": name} for name in (MODEL, *self.loaded)]}
            if route == "load_lora_adapter":
                return self._load(body["lora_name"], Path(body["lora_path"]))
            if route == "unload_lora_adapter":
                known = self.loaded.pop(body["lora_name"], None)
                return (404, "cannot be found") if known is None else (200, "Success")
            if route != "completions" or body["model"] not in self.loaded:
                return 404, "does not exist"
            return 200, {"choices": self._complete(body)}

    def _load(self, name, folder):
        if name in self.loaded:
            return 400, "has already been loaded"
        if not (folder / "adapter_config.json").is_file():
            return 404, "No adapter found"

        # A name of its own every time: what was loaded before must not answer for it.
        self._count += 1
        own = self.loaded[name] = f"a{self._count}"
        if isinstance(self._model, PeftModel):
            self._model.load_adapter(folder, own)
        else:
            self._model = PeftModel.from_pretrained(self._model, folder, own)
        return 200, f"Success: LoRA adapter '{name}' added successfully."

    @torch.no_grad()
    def _complete(self, body):
        self._model.set_adapter(self.loaded[body["model"]])
        draws = [torch.Generator().manual_seed(body["seed"] + i) for i in range(body["n"])]
        stops, temperature = body["stop_token_ids"], body["temperature"]
        rows: list[list[int]] = [[] for _ in draws]
        logp: list[list[torch.Tensor]] = [[] for _ in draws]

        read, cache = torch.tensor([body["prompt"]] * len(rows)), None
        for _ in range(body["max_tokens"]):
            out = self._model(read, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = out.past_key_values
            logp_nV = torch.log_softmax(out.logits[:, -1] / (temperature or 1.0), -1)
            for ids, drawn, logp_V, draw in zip(rows, logp, logp_nV, draws, strict=True):
                if ids and ids[-1] in stops:
                    continue
                sampled = torch.multinomial(logp_V.exp(), 1, generator=draw)
                ids.append(int(sampled if temperature else logp_V.argmax()))
                drawn.append(logp_V[ids[-1]])
            read = torch.tensor([[ids[-1]] for ids in rows])
        for ids, drawn in zip(rows, logp, strict=True):
            self.logp[(body["model"], *ids)] = torch.stack(drawn)
        return [{"token_ids": ids} for ids in rows]


@contextlib.contextmanager
def serve(key):
    """Answer all requests to the server's address, for the length of the block."""
    server = LoraServer()

    def reply(request):
        if request.headers.get("Authorization") != f"Bearer {key}":
            return 401, {}, json.dumps({"error": "Unauthorized"})
        route = request.url.removeprefix(f"{server.url}/")
        status, answer = server.answer(route, json.loads(request.body or b"{}"))
        return status, {}, answer if isinstance(answer, str) else json.dumps(answer)

    with responses.RequestsMock(assert_all_requests_are_fired=False) as hosts:
        for method in ("GET", "POST"):
            hosts.add_callback(method, re.compile(server.url), reply)
        yield server

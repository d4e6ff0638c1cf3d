"""Answers in numbers from a backbone that writes none, for tests of the text decoder.

What belongs here: stand-ins for ``Population.sample``. What does not: tests.
"""

import torch


def answer_in_numbers(original):
    """Let the tiny backbone answer in numbers: each prompt's own last state, written as text.

    Every third answer is one number short. Logics are sampled as ever.
    """

    def sample(self, cache, settings):
        if settings.temperature > 0:
            return original(self, cache, settings)

        rows = []
        for number, state in enumerate(cache.last_states_ARD.detach().flatten(0, 1)):
            values = (100.0 * state).repeat(2)[: 47 if number % 3 == 2 else 48]
            text = ", ".join(f"{value:.2f}" for value in values.tolist())
            ids = self.backbone.tokenizer(text, add_special_tokens=False)["input_ids"]
            rows.append(ids[: settings.max_new_tokens])
        return pad_rows(rows, agents=len(cache.last_states_ARD))

    return sample


def pad_rows(rows, agents):
    """Return token rows as ``Population.sample`` returns them, ids and mask (A, R, T)."""
    width = max(len(row) for row in rows)
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return ids.reshape(agents, -1, width), mask.reshape(agents, -1, width)

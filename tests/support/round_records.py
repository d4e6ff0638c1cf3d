"""Made-up records of rounds, for whoever reads ``rounds.jsonl``."""

from compevo_core.training.round_record import RoundRecord


def round_record(number, agents=2, **changes):
    """A made-up record of a round; ``changes`` replace some of its values."""
    own = [0.25] * agents
    texts = [f"logic {agent} of round {number}" for agent in range(agents)]
    values = {
        "round": number,
        "weight_entropy": 0.5,
        "rewards": [-0.5] * agents,
        "fitness": [-0.75] * agents,
        "weights": [1 / agents] * agents,
        "gates": [1.0] * agents,
        "logics": texts,
        "group_rewards": [[-0.5, -1.0]] * agents,
        "interaction": [own] * agents,
        "candidates": texts,
        "group_logics": [[text, text] for text in texts],
        "unique_news": [4] * agents,
        "empty_logics": 0,
        "unread_answers": 0,
        "gradient_conflict": 0.125,
        "gradient_margin": 1.0,
        "equal_groups": 0,
        "grad_norm": 1.5,
        "kl": 0.001,
        "clip_fraction": 0.0,
        "regret": own,
        "fixed_rewards": [own] * agents,
        "played_rewards": own,
        "group_regret": own,
        "loss": 1.0 / (number + 1),
        "loss_pred": 0.5,
        "loss_tokens": 0.0,
        "loss_pg": 0.25,
        "loss_div": 1.0,
        "loss_prune": 2.0,
        "best_response_gap": own,
        "answers": 12,
        "epoch": 0,
        "rounds": 10,
        "seconds": 0.5,
        "eta_seconds": 0.5 * (9 - number),
        "train_seconds": 0.5 * (number + 1),
    }
    return RoundRecord.model_validate(values | changes)

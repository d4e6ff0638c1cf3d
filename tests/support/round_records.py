"""Made-up records of rounds, for whoever reads ``rounds.jsonl``."""

from compevo_core.training.round_record import RoundRecord


def round_record(number, agents=2, **changes):
    """A made-up record of a round; ``changes`` replace some of its values."""
    own = [0.25] * agents
    texts = [f"logic {agent} of round {number}" for agent in range(agents)]
    values = dict.fromkeys(("empty_logics", "unread_answers", "equal_groups", "epoch"), 0)
    values |= dict.fromkeys(("clip_fraction", "loss_tokens"), 0.0)
    values |= dict.fromkeys(("weight_entropy", "loss_pred", "seconds"), 0.5)
    values |= dict.fromkeys(("gradient_margin", "loss_div"), 1.0)
    values |= dict.fromkeys(("regret", "played_rewards", "group_regret", "best_response_gap"), own)
    values |= dict.fromkeys(("interaction", "fixed_rewards"), [own] * agents)
    values |= dict.fromkeys(("logics", "candidates"), texts)
    values |= {
        "round": number,
        "rewards": [-0.5] * agents,
        "fitness": [-0.75] * agents,
        "weights": [1 / agents] * agents,
        "gates": [1.0] * agents,
        "group_rewards": [[-0.5, -1.0]] * agents,
        "group_logics": [[text, text] for text in texts],
        "unique_news": [4] * agents,
        "gradient_conflict": 0.125,
        "grad_norm": 1.5,
        "kl": 0.001,
        "loss": 1.0 / (number + 1),
        "loss_pg": 0.25,
        "loss_prune": 2.0,
        "answers": 12,
        "rounds": 10,
        "eta_seconds": 0.5 * (9 - number),
        "train_seconds": 0.5 * (number + 1),
    }
    return RoundRecord.model_validate(values | changes)

"""Agents: prompts, answers, logics, selection and the policy terms of the method (paper 4)."""

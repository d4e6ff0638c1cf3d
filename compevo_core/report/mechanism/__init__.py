"""The paper's figures of mechanism: how systems of agents learn, and what their agents become."""

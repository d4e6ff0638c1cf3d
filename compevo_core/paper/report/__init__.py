"""The paper's tables again: this project's committed rows next to the published figures."""

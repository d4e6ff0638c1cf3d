"""The paper's tables again: this project's committed rows beside the published figures."""

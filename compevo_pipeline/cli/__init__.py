"""The command line: every command of `compevo`, and the demo."""
